from importlib.metadata import entry_points

# Where natty is installed, pytest has loaded its plugin through the entry point; a bare checkout needs this line.
_loaded = any(entry.value == "natty.testing.plugin" for entry in entry_points(group="pytest11"))
pytest_plugins = ["pytester"] if _loaded else ["pytester", "natty.testing.plugin"]
