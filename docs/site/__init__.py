"""The documentation as a static site: ``python -m docs.site`` builds it, ``python -m docs.site.draw`` its diagrams."""
