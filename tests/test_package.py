import subprocess
import sys

import pytest

import shiftcal


def test_every_public_name_resolves_and_is_listed() -> None:
    assert dir(shiftcal) == sorted(shiftcal.__all__)
    for name in shiftcal.__all__:
        assert getattr(shiftcal, name) is not None
    assert set(shiftcal.__all__) == set(shiftcal._NAMES) | set(shiftcal._MODULES)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = shiftcal.nothing


def test_importing_the_package_costs_nothing() -> None:
    code = "import sys, shiftcal; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
