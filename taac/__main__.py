"""`python -m taac <command>`: the same as `taac <command>`."""

from taac.commands.main import main

if __name__ == "__main__":
    main()
