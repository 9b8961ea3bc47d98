"""`taac list`: names the methods and the tasks that the package comes with, in the words of their own files."""

from __future__ import annotations


def define_flags() -> None:
    """Defines none."""


def run() -> None:
    from taac.configuration import shipped

    methods, additions, tasks = shipped.files("methods"), shipped.additions(), shipped.files("tasks")
    print("methods, for --method:")
    for name, path in methods.items():
        print(f"  {name:<24}{shipped.about(path)}")
    print("\nadded to a method: --method taac+her+flash")
    for name, path in additions.items():
        print(f"  {name:<24}{shipped.about(path)}")
    print("\ntasks, for --task: an environment gets the settings of the file that names it")
    for name, path in tasks.items():
        print(f"  {name:<24}{shipped.about(path)}")
    print(
        f"\nany other environment, such as Pendulum-v1, my_module:MyEnv-v0 or my_module:MyEnv, gets those of "
        f"{shipped.DEFAULT_TASK}; --task and --method also take a .gin file of your own"
    )
