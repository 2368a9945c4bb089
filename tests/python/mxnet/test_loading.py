"""How casync.mxnet imports MXNet, and what it says where it cannot. Each in a process of its own."""

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

needs_mxnet = pytest.mark.skipif(find_spec("mxnet") is None, reason="mxnet is not installed")


def said_by(program, tmp_path):
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    return run.returncode, run.stdout.strip(), run.stderr.strip()


@needs_mxnet
def test_what_the_import_leaves_as_it_was(tmp_path):
    """NumPy's names, and the number of OpenMP's threads, which are torch's too."""
    program = (
        "import numpy as np, torch; torch.set_num_threads(2); had = 'bool' in vars(np); import casync.mxnet\n"
        "assert ('bool' in vars(np)) == had\n"
        "print(torch.get_num_threads())"
    )
    code, out, err = said_by(program, tmp_path)
    assert (code, out) == (0, "2"), err


@needs_mxnet
def test_mxnet_that_the_program_has_imported_is_taken_as_it_is(tmp_path):
    program = "import numpy as np; np.bool = bool; import mxnet, casync.mxnet; print(np.bool is bool)"
    code, out, err = said_by(program, tmp_path)
    assert (code, out) == (0, "True"), err


@pytest.mark.skipif(int(np.__version__[0]) < 2, reason="NumPy is 1")
def test_numpy_2_is_refused(tmp_path):
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").touch()
    code, _, err = said_by("import casync.mxnet", tmp_path)
    assert code == 1
    assert f"ImportError: MXNet cannot be imported with NumPy {np.__version__}" in err
    assert "pip install mxnet==1.9.1 'numpy<2'" in err


@pytest.mark.skipif(find_spec("mxnet") is not None, reason="mxnet is installed")
def test_where_mxnet_is_not_installed(tmp_path):
    code, _, err = said_by("import casync.mxnet", tmp_path)
    assert code == 1
    assert "ImportError: casync.mxnet needs MXNet, which is not installed" in err
    assert "pip install mxnet==1.9.1" in err


@needs_mxnet
def test_a_world_of_one(tmp_path):
    program = (
        "import casync.mxnet as hvd; from casync.mxnet.loading import mx; hvd.init()\n"
        "print(hvd.allreduce(mx.nd.ones(3) * 2).asnumpy().tolist(), hvd.size())"
    )
    code, out, err = said_by(program, tmp_path)
    assert (code, out) == (0, "[2.0, 2.0, 2.0] 1"), err


@needs_mxnet
def test_the_naive_engine(tmp_path):
    """Which runs each operation where it is pushed, and waits for it."""
    program = (
        "import os; os.environ['MXNET_ENGINE_TYPE'] = 'NaiveEngine'\n"
        "import casync.mxnet as hvd; from casync.mxnet.loading import mx; hvd.init()\n"
        "print(hvd.allreduce(mx.nd.ones(3) * 2).asnumpy().tolist())"
    )
    code, out, err = said_by(program, tmp_path)
    assert (code, out) == (0, "[2.0, 2.0, 2.0]"), err
