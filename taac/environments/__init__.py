"""Environments: Gymnasium to `TimeStep`. Import from the modules: worker processes load `single` alone, without torch."""
