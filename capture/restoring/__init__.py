"""From an archive back to a stream: what was, the plan (pure), and the three ways to carry it out."""
