"""The cases of llmk-bench, as far as peers need them: "op key=value flag ..."."""

# What llmk-bench takes where a case says nothing; only fields that a peer looks at.
DEFAULTS = {
    "rmsnorm": {"rows": "1", "h": "1", "x": "f16"},
    "gated_activation": {"rows": "1", "d": "1", "x": "f16", "act": "silu", "layout": "split"},
    "linear": {"m": "1", "n": "64", "k": "64", "x": "f16", "w": "f16", "group": "0"},
    "gated_linear": {"m": "1", "n": "64", "k": "64", "x": "f16", "w": "f16", "act": "silu"},
    "moe_forward": {"model": "mixtral-8x7b", "t": "1", "x": "f16", "w": "f16"},
}


class Case:
    """case.op, case["key"] (text, "" where absent), case.number("key")."""

    def __init__(self, text):
        words = text.split()
        if not words:
            raise ValueError("an empty case")
        self.text, self.op = text, words[0]
        self.fields = dict(DEFAULTS.get(self.op, {}))
        for word in words[1:]:
            key, _, value = word.partition("=")
            self.fields[key] = value or "1"

    def __getitem__(self, key):
        return self.fields.get(key, "")

    def number(self, key):
        return int(self.fields.get(key, 0))
