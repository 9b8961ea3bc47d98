"""`python -m taac <command>`: the same as `taac <command>`."""

import os
import sys

# Python has put the working directory first: a folder of a stranger's would be asked for every module.
if sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from taac.commands.main import main

if __name__ == "__main__":
    main()
