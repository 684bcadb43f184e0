"""One more case of what another one proves: ``pytest -m slow`` runs these."""

import pytest


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)
