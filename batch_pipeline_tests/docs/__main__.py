"""`python -m batch_pipeline_tests.docs` writes the generated parts of the pages.

With `texts`, it prints every text that users see instead.
"""

import sys

from batch_pipeline_tests.docs.generated_parts import PAGES_WITH_PARTS, updated
from batch_pipeline_tests.docs.stream_file_page import PAGE, text
from batch_pipeline_tests.docs.visible_texts import visible_texts


def main() -> None:
    """Write the generated reference pages and parts of pages, or print the texts."""
    if sys.argv[1:] == ["texts"]:
        sys.stdout.writelines(f"{line}\n" for line in visible_texts())
        return
    PAGE.write_text(text(), encoding="utf-8")
    for page in PAGES_WITH_PARTS:
        page.write_text(updated(page), encoding="utf-8")


if __name__ == "__main__":
    main()
