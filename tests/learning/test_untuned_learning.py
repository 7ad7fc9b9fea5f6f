"""Tasks that no preset names, with no option but the number of steps: what a user's own environment meets.

`rookery bench learning` has the longer ones (`untuned-...`), with their records.
"""

import pytest

import rookery

BOARD = {"rows": 8, "columns": 8}


@pytest.mark.parametrize("system", ["impala", "appo", "a2c"])
def test_catch_on_a_board_of_another_size_is_learned_by_default(system, tmp_path):
    """IMPALA stayed at -0.5 and APPO at -0.7 with numbers of papers in the units of others."""
    result = rookery.train(
        system, env="catch", env_options=BOARD, total_steps=250_000, stop_return=0.7, eval_episodes=0, runs=str(tmp_path)
    )
    assert result.metrics["return_mean"] >= 0.7, result.metrics
