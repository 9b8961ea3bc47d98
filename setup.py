"""Packaging of `taac`. constraints.txt pins the versions of all dependencies."""

import pathlib
import re
import shutil

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (ROOT / "taac" / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)[1]
PYTHONS = (10, 11, 12, 13)  # of which the continuous integration runs the tests


class BuildWithConfigs(build_py):
    """Ships the gin files inside the package, where an installed `taac` looks for them, but for those that import examples."""

    def run(self):
        super().run()
        if self.editable_mode:
            return  # an editable install reads them from the repository
        for folder in ("gin", "experiments"):
            for path in sorted((ROOT / folder).rglob("*.gin")):
                if re.search(r"^(import|from) experiments\b", path.read_text(encoding="utf-8"), re.MULTILINE):
                    continue
                target = pathlib.Path(self.build_lib, "taac", "configs", path.relative_to(ROOT))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)


# Environments of tasks that Gymnasium does not have. mo-gymnasium 1.3.2 is left out because it depends on pygame, whose files
# would overwrite those of pygame-ce, which Gymnasium and highway-env need. The Makefile installs it without dependencies.
MANIPULATION = ["gymnasium-robotics>=1.4.2"]
DRIVING = ["highway-env>=1.12.1"]
# `create_environment.engine = "envpool"`; 740 MB, so not among "all". It needs Python 3.11.
ENVPOOL = ["envpool>=1.2.5; python_version >= '3.11'"]
RAY = ["ray>=2.49"]  # `taac compare --launcher ray`
# Demonstrations from Minari datasets.
MINARI = ["minari[hdf5]>=0.5.3"]
# `make docs`. Sphinx 8.2 makes the API reference by itself, and needs Python 3.11.
DOCS = [f"{package}; python_version >= '3.11'" for package in ("sphinx>=8.2", "myst-parser>=4.0", "furo>=2024.8.6")]
ONNX = ["onnx>=1.17", "onnxscript>=0.5", "onnxruntime>=1.20"]  # `taac export`
SWEEP = ["optuna>=4.0"]  # `taac sweep`
ALL = MANIPULATION + DRIVING + RAY + MINARI + ONNX + SWEEP

setup(
    name="taac",
    version=VERSION,
    description="Temporally abstract actor-critic control for PyTorch and Gymnasium",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license_expression="MIT",
    author="The taac authors",
    keywords="reinforcement-learning temporal-abstraction action-repetition taac sac pytorch gymnasium",
    project_urls={"Paper": "https://arxiv.org/abs/2104.06521"},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in PYTHONS),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    package_data={
        "taac": [
            "py.typed", "machine/*.cpp", "analysis/report/anchors.json", "analysis/report/html/*",
        ]
    },
    python_requires=f">=3.{PYTHONS[0]}",
    packages=find_packages(include=["taac", "taac.*"]),
    # An earlier version passed its test suite on Python 3.10 with all of these lower bounds together, except safetensors'.
    install_requires=[
        "torch>=2.6",
        "numpy>=1.26",
        "scipy>=1.11",  # distributions of the report's statistics
        "gymnasium[classic-control,box2d,mujoco]>=1.2.3",
        "safetensors>=0.4.3",  # tensors in files that cannot run code
        "tensorboard>=2.18",
        "absl-py>=2.1",
        "gin-config>=0.5.0",
        "matplotlib>=3.8",  # the pictures of `taac plot`
        "tqdm>=4.66",  # the progress bar
        "psutil>=5.9",  # free memory, on every system
        "typeguard>=4.3",  # types of gin bindings, checked before any work
        "imageio[ffmpeg]>=2.34",  # videos of `taac play`
        "pillow>=10.1",  # gif files, film strips, text on frames
    ],
    extras_require={
        "manipulation": MANIPULATION,
        "driving": DRIVING,
        "envpool": ENVPOOL,
        "ray": RAY,
        "minari": MINARI,
        "onnx": ONNX,
        "docs": DOCS,
        "sweep": SWEEP,
        "all": ALL,
        "dev": [
            *ALL,
            *DOCS,
            "pytest>=8.0",
            "pytest-xdist>=3.5",
            "hypothesis>=6.100",
            "ruff>=0.6",
            "mypy>=1.11",
            "nbclient>=0.10",  # runs the notebook of docs/
            "ipykernel>=6.29",
        ],
    },
    entry_points={"console_scripts": ["taac = taac.commands.main:main"]},
    cmdclass={"build_py": BuildWithConfigs},
)
