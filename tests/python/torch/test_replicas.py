"""What is said about replicas that differ."""

from casync.replicas import difference


def test_alike():
    assert difference(["a", "b"], [[1, 2], [1, 2], [1, 2]]) is None
    assert difference([], [[], []]) is None


def test_the_first_parameter_and_all_its_ranks_are_named():
    text = difference(["a", "b", "c"], [[1, 2, 3], [1, 5, 3], [1, 5, 4]])
    assert text is not None
    assert text.startswith("parameter b of ranks 1, 2 is not what it is on rank 0, and 1 more of 3 parameters differ")
