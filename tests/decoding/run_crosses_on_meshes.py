"""Cases of crosses.py that are on a mesh, for test_crosses.py: python ... DIRECTORY HALF.

Writes report.json: of each case "alike", or how it differs from its rows alone.
"""

import json
import sys
import tempfile
from pathlib import Path

from crosses import alone, covering, decoded, draft_of, mesh_of, named
from uneven import assert_alike, write

import specdec


def main(directory: Path, half: int) -> None:
    write(directory)
    report = {}
    for case in [case for case in covering() if mesh_of(case)][half::2]:
        draft = draft_of(directory, case)
        one, many = (
            specdec.load_pair(target=str(directory / "target"), draft=draft, mesh=mesh)
            for mesh in (None, mesh_of(case))
        )
        with tempfile.TemporaryDirectory() as own:
            found, changes = decoded(directory, many, case, Path(own))
        try:
            assert_alike(found, alone(one, case))
            report[named(case)] = "alike" if "grew" in changes.seen else "its arrays did not grow"
        except AssertionError as error:
            report[named(case)] = str(error)
    try:
        next(many.stream([3, 1]))
    except ValueError as error:
        report["stream"] = str(error)
    (directory / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
