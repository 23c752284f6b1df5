"""`python -m batch_pipeline_tests.docs` writes the generated parts of the pages."""

from batch_pipeline_tests.docs.generated_parts import PAGES_WITH_PARTS, updated
from batch_pipeline_tests.docs.stream_file_page import PAGE, text


def main() -> None:
    """Write the generated reference pages and parts of pages."""
    PAGE.write_text(text(), encoding="utf-8")
    for page in PAGES_WITH_PARTS:
        page.write_text(updated(page), encoding="utf-8")


if __name__ == "__main__":
    main()
