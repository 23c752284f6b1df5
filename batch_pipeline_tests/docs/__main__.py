"""`python -m batch_pipeline_tests.docs`: write the pages anew that are made from the code."""

from batch_pipeline_tests.docs.stream_file_page import PAGE, text


def main() -> None:
    """Write the reference of stream files."""
    PAGE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
