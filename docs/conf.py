"""How the pages are built: MyST Markdown in, Furo HTML out, nothing from the network."""

from melisma import __version__

project = "Melisma"
copyright = "The Melisma authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
default_role = "code"
highlight_language = "text"
myst_heading_anchors = 3
nitpicky = True

html_theme = "furo"
html_title = f"Melisma {__version__}"
html_copy_source = False
html_show_sphinx = False
