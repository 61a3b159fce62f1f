"""A validating HTML parser."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Checker(HTMLParser):
    """Tracks the open elements and everything that a page could load."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.text = [], [], []
        self.loads, self.alternatives, self.anchors, self.ids = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        values = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        if "src" in values:
            self.loads.append(values["src"])
        if tag == "img":
            self.alternatives.append(values["alt"])
        if values.get("href", "").startswith("#"):
            self.anchors.append(values["href"][1:])
        if "id" in values:
            self.ids.append(values["id"])

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def check(content):
    checker = Checker()
    checker.feed(content)
    checker.close()
    assert checker.open == []
    return checker
