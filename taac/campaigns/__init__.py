"""Many runs: `comparison` lists them (methods x tasks x seeds), `run` is one of them, `campaign` trains them with a launcher.

`taac.commands.compare` is the command. `taac.analysis.statistics.differences` compares the results.
"""
