"""A broker serves its groups once its data folder is known to be the latest."""

from itertools import product

import pytest

from broker.confirmation import Confirmation

OLD, NEW = 0xA, 0xB


def of_cluster(size: int) -> Confirmation:
    made = Confirmation(OLD)
    made.set_brokers(1, range(1, size + 1))
    return made


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_the_catalog_confirms(size: int) -> None:
    made = of_cluster(size)
    assert not made.confirmed
    made.registered(OLD)
    assert made.confirmed


@pytest.mark.parametrize(("size", "enough"), [(2, 1), (3, 2), (4, 2), (5, 3)])
def test_a_majority_of_the_other_brokers_confirms(size: int, enough: int) -> None:
    made = of_cluster(size)
    for broker_id in range(2, 2 + enough):
        assert not made.confirmed
        made.accepted(broker_id, OLD)
        made.accepted(broker_id, OLD)
    assert made.confirmed


def test_a_broker_alone_waits_for_the_catalog() -> None:
    made = of_cluster(1)
    made.accepted(7, OLD)
    assert not made.confirmed, "not one of the cluster"
    made.unreachable()
    assert made.confirmed, "there is nobody to ask"


def test_a_catalog_that_cannot_be_asked_does_not_confirm_where_there_are_others() -> None:
    made = of_cluster(3)
    made.unreachable()
    made.accepted(2, OLD)
    assert not made.confirmed


def test_a_refutation_that_was_not_stored_is_tried_again() -> None:
    made = of_cluster(3)
    assert made.refuted(OLD, "an older copy")
    made.not_carried_out()
    assert made.refuted(OLD, "an older copy")


@pytest.mark.parametrize(("by_catalog", "by_peers"), [*product([False, True], repeat=2)])
def test_one_refutation_outweighs_everything(by_catalog: bool, by_peers: bool) -> None:
    made = of_cluster(3)
    if by_catalog:
        made.registered(OLD)
    if by_peers:
        made.accepted(2, OLD)
        made.accepted(3, OLD)
    assert made.refuted(OLD, "an older copy")
    assert not made.confirmed
    assert made.refutation == "an older copy"
    made.registered(OLD)
    assert not made.confirmed


def test_a_new_incarnation_begins_anew_and_ignores_what_comes_late() -> None:
    made = of_cluster(3)
    assert made.refuted(OLD, "an older copy")
    assert not made.refuted(OLD, "by another one"), "once"
    made.renewed(NEW)
    assert not made.confirmed
    made.accepted(2, OLD)
    made.registered(OLD)
    assert not made.confirmed
    assert not made.refuted(OLD, "late")
    made.accepted(2, NEW)
    made.accepted(3, NEW)
    assert made.confirmed
