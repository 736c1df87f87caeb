"""Who does not know the secret gets nowhere, and nothing heard before helps."""

from dataclasses import dataclass

import pytest

from broker.peers.folder_starts import FolderStarts
from broker.peers.handshake import (
    OLDEST_VERSION,
    VERSION,
    DataFolder,
    Dialling,
    HandshakeRefused,
    Keys,
    Listening,
    Purpose,
)

SECRET = b"a secret of the tests"
FOLDER = DataFolder(incarnation=0xA, starts=5, session=0x51)
HELLO_BYTES = 78


@dataclass
class Heard:
    """What went over the wire."""

    hello: bytes
    nonce: bytes
    dialler_proof: bytes
    listener_proof: bytes


def dialling(
    secret: bytes = SECRET, own_id: int = 1, peer_id: int = 2, nonce: int = 1, folder: DataFolder | None = FOLDER
) -> Dialling:
    return Dialling(secret, Purpose.BULK, own_id, peer_id, bytes([nonce]) * 32, folder)


def listening(
    secret: bytes = SECRET, own_id: int | None = 2, nonce: int = 2, starts: FolderStarts | None = None
) -> Listening:
    return Listening(secret, own_id, bytes([nonce]) * 32, (starts or FolderStarts({})).check)


def received(listener: Listening, hello: bytes) -> bytes:
    """The listener's answer to the hello, which it takes in one or two pieces."""
    answer = b""
    while hello:
        piece, hello = hello[: listener.needs], hello[listener.needs :]
        answer += listener.receive(piece)
    return answer


def meet(dialler: Dialling, listener: Listening) -> Heard:
    nonce = received(listener, dialler.hello)
    assert dialler.needs == len(nonce)
    dialler_proof = dialler.receive(nonce)
    assert listener.needs == len(dialler_proof)
    assert listener.keys is None
    listener_proof = listener.receive(dialler_proof)
    assert dialler.needs == len(listener_proof)
    assert dialler.keys is None
    assert dialler.receive(listener_proof) == b""
    assert dialler.needs == listener.needs == 0
    return Heard(dialler.hello, nonce, dialler_proof, listener_proof)


def keys_of(side: Dialling | Listening) -> Keys:
    assert side.keys is not None
    return side.keys


def test_two_that_know_the_secret_agree_on_two_keys() -> None:
    dialler, listener = dialling(), listening()
    meet(dialler, listener)
    assert keys_of(dialler) == keys_of(listener)[::-1]
    assert keys_of(dialler).sending != keys_of(dialler).receiving
    assert (listener.peer_id, listener.purpose) == (1, Purpose.BULK)


@pytest.mark.parametrize("changed", ["dialler", "listener"])
def test_every_connection_has_its_own_keys(changed: str) -> None:
    first, second = dialling(), dialling(nonce=9 if changed == "dialler" else 1)
    meet(first, listening())
    meet(second, listening(nonce=9 if changed == "listener" else 2))
    assert not set(keys_of(first)) & set(keys_of(second))


def test_a_dialler_with_another_secret_is_refused_before_it_learns_anything() -> None:
    dialler, listener = dialling(secret=b"guessed"), listening()
    proof = dialler.receive(received(listener, dialler.hello))
    with pytest.raises(HandshakeRefused, match="secret"):
        listener.receive(proof)
    assert listener.keys is None


def test_a_listener_with_another_secret_is_refused() -> None:
    dialler = dialling()
    dialler.receive(bytes(32))
    with pytest.raises(HandshakeRefused, match="secret"):
        dialler.receive(bytes(dialler.needs))
    assert dialler.keys is None


def test_a_recorded_dialler_is_refused() -> None:
    heard = meet(dialling(), listening())
    later = listening(nonce=3)
    received(later, heard.hello)
    with pytest.raises(HandshakeRefused, match="secret"):
        later.receive(heard.dialler_proof)


def test_a_recorded_listener_is_refused() -> None:
    heard = meet(dialling(), listening())
    later = dialling(nonce=3)
    later.receive(heard.nonce)
    with pytest.raises(HandshakeRefused, match="secret"):
        later.receive(heard.listener_proof)


def test_a_proof_handed_back_to_its_maker_is_refused() -> None:
    dialler = dialling()
    proof = dialler.receive(bytes(32))
    with pytest.raises(HandshakeRefused, match="secret"):
        dialler.receive(proof)


def test_a_hello_handed_back_to_its_maker_is_refused() -> None:
    """The victim dials the attacker, who dials the victim with the victim's own words."""
    victim_dials = dialling(own_id=1, peer_id=2)
    victim_listens = listening(own_id=1)
    with pytest.raises(HandshakeRefused, match="looks for broker 2"):
        received(victim_listens, victim_dials.hello)
    with pytest.raises(HandshakeRefused, match="its id is this broker's own"):
        received(victim_listens, dialling(own_id=1, peer_id=1).hello)


def test_a_nonce_handed_back_gives_no_proof_of_the_other_role() -> None:
    """The attacker lets a broker that it is dialled by answer the challenge of a broker that it dials."""
    asks = listening(own_id=2)
    wants = dialling(own_id=3, peer_id=2, nonce=7)
    challenge = received(asks, wants.hello)
    oracle = dialling(own_id=1, peer_id=3)
    with pytest.raises(HandshakeRefused, match="secret"):
        asks.receive(oracle.receive(challenge))


@pytest.mark.parametrize("position", range(HELLO_BYTES))
def test_whatever_is_changed_in_the_hello_ends_it(position: int) -> None:
    """Ids, purpose, nonce and folder are covered by the proofs."""
    dialler, listener = dialling(), listening()
    hello = bytearray(dialler.hello)
    assert len(hello) == HELLO_BYTES
    hello[position] ^= 3  # turns one purpose into the other
    with pytest.raises(HandshakeRefused):
        listener.receive(dialler.receive(received(listener, bytes(hello))))


def test_a_newer_hello_is_not_passed_off_as_one_of_the_oldest_version() -> None:
    """Which would get an older copy of a folder past the check."""
    dialler, listener = dialling(), listening()
    hello = bytearray(dialler.hello)[: listener.needs]
    hello[4] = OLDEST_VERSION
    with pytest.raises(HandshakeRefused):
        listener.receive(dialler.receive(listener.receive(bytes(hello))))


def test_a_broker_of_the_oldest_version_is_taken_without_a_folder() -> None:
    dialler, listener = dialling(folder=None), listening()
    assert len(dialler.hello) == listener.needs == 54
    meet(dialler, listener)
    assert keys_of(dialler) == keys_of(listener)[::-1]
    assert dialler.version == listener.version == OLDEST_VERSION < VERSION


@pytest.mark.parametrize(
    "copy", [FOLDER._replace(starts=4), FOLDER._replace(session=0x52)], ids=["fewer starts", "another process"]
)
def test_an_older_copy_of_a_folder_is_refuted(copy: DataFolder) -> None:
    starts = FolderStarts({})
    meet(dialling(), listening(starts=starts))
    dialler, listener = dialling(folder=copy), listening(starts=starts)
    verdict = listener.receive(dialler.receive(received(listener, dialler.hello)))
    assert listener.keys is None
    assert listener.refusal is not None
    with pytest.raises(HandshakeRefused, match="has seen 5 starts of this data folder"):
        dialler.receive(verdict)
    assert (dialler.keys, dialler.refuted_by_starts) == (None, 5)


def test_a_verdict_is_not_turned_into_its_opposite() -> None:
    starts = FolderStarts({(1, 0xA): 9})
    dialler, listener = dialling(), listening(starts=starts)
    verdict = bytearray(listener.receive(dialler.receive(received(listener, dialler.hello))))
    verdict[:9] = bytes([1]) + bytes(8)
    with pytest.raises(HandshakeRefused, match="secret"):
        dialler.receive(bytes(verdict))


def test_a_dialler_without_the_secret_does_not_change_the_count_of_starts() -> None:
    starts = FolderStarts({})
    forged, listener = dialling(secret=b"guessed", folder=FOLDER._replace(starts=99)), listening(starts=starts)
    with pytest.raises(HandshakeRefused):
        listener.receive(forged.receive(received(listener, forged.hello)))
    meet(dialling(), listening(starts=starts))


def test_a_broker_without_an_id_takes_nobody() -> None:
    with pytest.raises(HandshakeRefused, match="no id yet"):
        received(listening(own_id=None), dialling().hello)


def test_other_protocols_and_versions_are_refused() -> None:
    with pytest.raises(HandshakeRefused, match="unknown protocol"):
        listening().receive(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n".ljust(54))
    hello = bytearray(dialling().hello)
    hello[4] = 9
    with pytest.raises(HandshakeRefused, match="version 9"):
        received(listening(), bytes(hello))
