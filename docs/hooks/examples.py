"""Griffe extension for the API page: the examples of docstrings, paragraphs that begin with >>>, become code
blocks."""

import griffe


class Examples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_) -> None:
        if obj.docstring is None:
            return
        paragraphs = obj.docstring.value.split("\n\n")
        obj.docstring.value = "\n\n".join(
            f"```pycon\n{paragraph}\n```" if paragraph.startswith(">>>") else paragraph
            for paragraph in paragraphs
        )
