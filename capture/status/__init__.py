"""How things are, for people and for monitors."""
