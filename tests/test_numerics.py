"""How CUDA computes, as the config sets it: torch's settings during a run and afterwards."""

from typing import Any

import pytest
import torch

from filfl import FilflError, simulate, verify
from filfl.errors import ConfigError
from filfl.system import numerics

cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul


def flags() -> dict[str, bool]:
    return {
        "deterministic": cudnn.deterministic,
        "benchmark": cudnn.benchmark,
        "cudnn_tf32": cudnn.allow_tf32,
        "matmul_tf32": matmul.allow_tf32,
    }


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("tf32", [True, False])
def test_a_run_sets_the_flags_and_restores_them(small: dict[str, Any], deterministic: bool, tf32: bool) -> None:
    before, during = flags(), []
    changes = {**small, "rounds": 1, "execution.deterministic": deterministic, "execution.tf32": tf32}
    simulate(changes, callbacks=[lambda record, state: during.append(flags())], progress=False)
    expected = {"deterministic": deterministic, "benchmark": not deterministic, "cudnn_tf32": tf32, "matmul_tf32": tf32}
    assert during == [expected]
    assert flags() == before


def test_the_default_is_deterministic_and_exact(small: dict[str, Any]) -> None:
    during: list[dict[str, bool]] = []
    simulate({**small, "rounds": 1}, callbacks=[lambda record, state: during.append(flags())], progress=False)
    assert during == [{"deterministic": True, "benchmark": False, "cudnn_tf32": False, "matmul_tf32": False}]


def test_the_flags_are_restored_after_an_error(small: dict[str, Any]) -> None:
    before = flags()

    def fails(record: object, state: object) -> None:
        raise ZeroDivisionError

    with pytest.raises((ZeroDivisionError, FilflError)):
        simulate({**small, "execution.tf32": True}, callbacks=[fails], progress=False)
    assert flags() == before


def test_verify_recomputes_with_the_flags_of_the_run(small: dict[str, Any], tmp_path, monkeypatch) -> None:
    import filfl.simulation.verification as verification

    simulate({**small, "rounds": 2, "execution.tf32": True}, out=tmp_path / "r", progress=False)
    seen: list[bool] = []
    recompute = verification._Checks.recompute

    def watched(*arguments: Any) -> None:
        seen.append(matmul.allow_tf32)
        recompute(*arguments)

    monkeypatch.setattr(verification._Checks, "recompute", watched)
    assert verify(tmp_path / "r").ok and seen == [True] and matmul.allow_tf32 is False


def test_torch_set_by_its_other_interface_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mixed:
        @property
        def allow_tf32(self) -> bool:
            raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch.backends.cuda, "matmul", Mixed())
    with pytest.raises(ConfigError, match=r"execution\.tf32"), numerics(True, False):
        pass
