"""Whether anything is missing."""
