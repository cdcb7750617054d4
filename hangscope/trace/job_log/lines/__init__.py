"""Splits a log into messages, without anything that was added around them."""
