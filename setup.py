"""What setup.cfg cannot say: the files that go along with the modules, and the commit that they are.

With ``SOURCE_DATE_EPOCH`` in the environment two builds of one commit have the same bytes; see docs/releases.md.
"""

import gzip
import os
import shutil
import tarfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
SHIPPED = ("ALCF", "data-lists", "docs", "envs", "examples", "launchers", "CHANGELOG.md", "setup.cfg", "train_7B.sh")
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
        if self.editable_mode:
            super().run()
            return
        target = Path(self.build_lib)
        # A module that is gone may be there from an earlier build, and would be in the wheel.
        shutil.rmtree(target / "megads", ignore_errors=True)
        super().run()
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
    """Adds the stamp, and packs with one time and one owner, in one order."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Make the folder that is packed."""
        super().make_release_tree(base_dir, files)
        stamp(Path(base_dir))
        # setuptools writes its copy anew, without comments; the wheel holds this file, too.
        (Path(base_dir) / "setup.cfg").unlink()
        shutil.copy(ROOT / "setup.cfg", base_dir)

    def make_archive(self, base_name: str, format: str, *args: str, base_dir: str, **more: str) -> str:
        """Pack the folder."""
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if epoch is None or format != "gztar":
            return super().make_archive(base_name, format, *args, base_dir=base_dir, **more)

        def same(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = int(epoch), 0, 0, "", ""
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            return entry

        path = f"{base_name}.tar.gz"
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=int(epoch)) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            archive.add(base_dir, filter=same)  # a folder's entries are sorted
        return path


def stamp(tree: Path) -> None:
    """Write the commit into a tree of files."""
    (tree / STAMP).unlink(missing_ok=True)  # it may be a hard link to the source
    (tree / STAMP).write_text(f"{commit()}\n", encoding="ascii")


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
