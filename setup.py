"""What setup.cfg cannot say: the files that go along with the modules, and the commit that they are."""

import shutil
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
SHIPPED = ("ALCF", "data-lists", "envs", "examples", "launchers", "CHANGELOG.md", "setup.cfg", "train_7B.sh")
"""Copied into ``megads/shipped`` of a wheel, where megads/storage/resources.py finds them."""
STAMP = Path("megads/release/commit.txt")


def commit() -> str:
    """Return the commit that is built: what an sdist was stamped with, else that of the checkout."""
    # Not by its name: the tree that is built need not be the one that Python would find.
    found = spec_from_file_location("commit", ROOT / STAMP.with_suffix(".py"))
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module.own_commit()


class BuildPy(build_py):
    """Adds the shipped files and the stamp; not to an editable install, which uses those of the checkout."""

    def run(self) -> None:
        """Build."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib)
        shutil.rmtree(target / "megads/shipped", ignore_errors=True)
        for name in self._shipped():
            (target / "megads/shipped" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / "megads/shipped" / name)
        stamp(target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Return the files that are built, which is what a wheel records."""
        added = [f"megads/shipped/{name}" for name in self._shipped()] + [str(STAMP)]
        return [*super().get_outputs(include_bytecode), *(str(Path(self.build_lib) / name) for name in added)]

    @staticmethod
    def _shipped() -> list[str]:
        found = [path for name in SHIPPED for path in [ROOT / name, *(ROOT / name).rglob("*")]]
        return sorted(
            str(path.relative_to(ROOT)) for path in found if path.is_file() and "__pycache__" not in path.parts
        )


class Sdist(sdist):
    """Adds the stamp."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Make the folder that is packed."""
        super().make_release_tree(base_dir, files)
        stamp(Path(base_dir))


def stamp(tree: Path) -> None:
    """Write the commit into a tree of files."""
    (tree / STAMP).unlink(missing_ok=True)  # it may be a hard link to the source
    (tree / STAMP).write_text(f"{commit()}\n", encoding="ascii")


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
