from natty.config.options import nearest
from natty.streams.nearest import missing_sentence


def test_the_nearest_names_come_first_whatever_their_case():
    assert nearest("ordres", ["ORDERS", "ORDERS_EU", "BILLS"])[0] == "ORDERS"
    assert nearest("zzz", ["ORDERS", "BILLS"]) == []


def test_a_missing_name_is_told_with_what_helps():
    assert (
        missing_sentence("stream", "ORDRES", ["BILLS", "ORDERS"]) == "there is no stream ORDRES; did you mean ORDERS?"
    )
    assert missing_sentence("stream", "X", ["B", "A"]) == "there is no stream X; there are A, B"
    assert missing_sentence("stream", "X", ["A"]) == "there is no stream X; there is A"
    assert missing_sentence("stream", "X", []) == "there is no stream X, nor any other"
    assert missing_sentence("stream", "X", list("ABCD")) == "there is no stream X"
    assert missing_sentence("consumer", "x", None) == "there is no consumer x"
