"""Environments: from Gymnasium to `TimeStep`. Import from the modules, so that worker processes load `single` without torch."""
