"""Added tokens in a text: each is one token wherever it is."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tokenizers import AddedToken


class AddedTokens:
    """Cuts texts at added tokens, as transformers' slow tokenizers do; the longest one wins.

    Args:
      tokens: by id.
      splits_all: whether they are text like any other.
    """

    def __init__(self, tokens: Mapping[int, AddedToken], splits_all: bool):
        self._tokens = tokens
        self._splits_all = splits_all
        self.ids = {token.content: i for i, token in tokens.items()}
        longest = sorted(filter(None, self.ids), key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest))})")

    def parts(self, text: str) -> list[str | int]:
        """The ids of added tokens, and the text between them."""
        if self._splits_all or not self.ids:
            return [text] if text else []
        parts = list(filter(None, self._pattern.split(text)))
        for i, part in enumerate(parts):
            if part not in self.ids:
                continue
            token = self._tokens[self.ids[part]]
            left, right = parts[i - 1] if i else "", parts[i + 1] if i + 1 < len(parts) else ""
            if token.rstrip and right:
                parts[i + 1] = right.lstrip()
            if token.lstrip and left:
                parts[i - 1] = left.rstrip()
            if token.single_word and left and left[-1] != " ":
                parts[i - 1], parts[i] = parts[i - 1] + part, ""
            elif token.single_word and right and right[0] != " ":
                parts[i + 1], parts[i] = part + parts[i + 1], ""
        return [self.ids.get(part, part) for part in parts if part]
