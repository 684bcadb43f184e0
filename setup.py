"""Packaging of specdec; tool settings are in pyproject.toml, pinned versions in constraints.txt."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


class BuildWithConfigs(build_py):
    """Puts configs/ into the package: who installs it alone has them too."""

    def run(self):
        super().run()
        if not self.editable_mode:
            configs = Path(self.build_lib) / "specdec" / "configs"
            shutil.copytree(HERE / "configs", configs, dirs_exist_ok=True)


def version() -> str:
    """The version in specdec/version.py, read without importing it."""
    text = (HERE / "specdec" / "version.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise RuntimeError('specdec/version.py has no line __version__ = "...".')
    return match.group(1)


COMMANDS = {
    "runs.command_line": ("decode", "transcribe", "train", "convert"),
    "reproduce.commands": ("benchmark", "reproduce"),
}
NOTEBOOKS = ["ipykernel>=6.29", "matplotlib>=3.9", "nbclient>=0.10", "nbformat>=5.10"]
DOCS = [
    "mkdocs>=1.6,<2",  # 2 takes no plugins.
    "mkdocs-material>=9.5",
    "mkdocstrings[python]>=0.29",
    "ruff>=0.9",  # Formats signatures.
]
# Decodes are compiled by them for TPUs and GPUs that are not there. Each goes with one JAX, which
# pip is told by constraints.txt, and specdec checks.
COMPILERS = ["jax-cuda12-pjrt", "jax-cuda12-plugin", "libtpu", "nvidia-cuda-nvcc-cu12"]
GGUF = ["accelerate>=1.1", "gguf>=0.10", "torch>=2.6"]  # What transformers reads them with.
GRAMMARS = ["outlines-core>=0.2.14"]
# Audio files, and other rates.
SPEECH = ["soundfile>=0.13", "soxr>=0.5"]
SEQIO = [
    "importlib_resources>=6.0",  # `tfds build` imports it, but does not ask for it.
    "rouge_score>=0.1.2",
    "seqio>=0.0.20",
    "tensorflow>=2.21",
    "tensorflow-datasets>=4.9.10",
]

setup(
    name="specdec-jax",  # The name specdec is taken on PyPI; the import stays specdec.
    version=version(),
    description="Faster sampling from large Transformers with the same output distribution.",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["specdec", "specdec.*"]),
    cmdclass={"build_py": BuildWithConfigs},
    entry_points={
        "console_scripts": [
            f"specdec-{name} = specdec.{module}:{name}"
            for module, names in COMMANDS.items()
            for name in names
        ]
    },
    package_data={"specdec": ["compile/*.txtpb", "bundled/**/*", "py.typed"]},
    install_requires=[
        "absl-py>=2.1",
        "flax>=0.10.7",
        "gin-config>=0.5.0",
        "huggingface_hub>=0.30",
        "jax>=0.8.0",
        "jaxtyping>=0.3.0",
        "ml_dtypes>=0.5.0",
        "numpy>=2.0",
        "optax>=0.2.4",
        "orbax-checkpoint>=0.11.16,<1.0",  # 1.0 changes its interface.
        "sacrebleu>=2.4",
        "safetensors>=0.5",
        "protobuf>=4.21",  # In which SentencePiece models are written.
        "sentencepiece>=0.2.0",
        "tensorstore>=0.1.71",
        "tokenizers>=0.20",
        "tqdm>=4.66",
        "transformers>=5.24",  # Without torch.
    ],
    extras_require={
        "compilers": COMPILERS,
        "docs": DOCS,
        "grammars": GRAMMARS,
        "notebooks": NOTEBOOKS,
        "seqio": SEQIO,
        "bench": [
            "ctranslate2>=4.5",
            "faster-whisper>=1.1",
            "matplotlib>=3.9",
            "torch>=2.6",
        ],
        "gguf": GGUF,
        "speech": SPEECH,
        "test": [
            *COMPILERS,
            *DOCS,
            *GGUF,
            *GRAMMARS,
            *NOTEBOOKS,
            *SEQIO,
            *SPEECH,
            "beartype>=0.21",
            "import-linter>=2.1",
            "pyright[nodejs]>=1.1.400",
            "pytest>=8.3",
            "pytest-xdist>=3.6",
            "scipy>=1.13",
            "setuptools>=68",
            "torch>=2.6",
        ],
    },
)
