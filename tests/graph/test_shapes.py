"""Shapes as people write them."""

import pytest

from deeppool.errors import InvalidValueError
from deeppool.graph.layer import Input
from deeppool.graph.shapes import format_shapes, parse_shapes


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("3,224,224", (3, 224, 224)),
        (" 3, 224, 224 ", (3, 224, 224)),
        ("3x224x224", (3, 224, 224)),
        ("128", (128,)),
        ("input_ids=128,decoder_input_ids=64", {"input_ids": (128,), "decoder_input_ids": (64,)}),
        ("image=3,8,8, tokens = 16", {"image": (3, 8, 8), "tokens": (16,)}),
        ("", None),
        ("  ", None),
    ],
)
def test_shapes_are_read(text, shape):
    assert parse_shapes(text) == shape


@pytest.mark.parametrize("text", ["wide", "3,,8", "3;8", "a=3,b=", "3.5"])
def test_what_is_no_shape_is_shown_with_an_example(text):
    with pytest.raises(InvalidValueError, match=rf"whole numbers with commas, got '{text}' \(for example 3,224,224"):
        parse_shapes(text)


@pytest.mark.parametrize(
    "inputs",
    [(Input("", (3, 8, 8)),), (Input("a", (128,)), Input("b", (3, 64)))],
)
def test_what_is_written_can_be_read(inputs):
    found = parse_shapes(format_shapes(inputs))
    assert found == (inputs[0].shape if len(inputs) == 1 else {given.name: given.shape for given in inputs})


def test_the_name_of_the_only_input_is_left_out():
    assert format_shapes((Input("input_ids", (128,)),)) == "128"
