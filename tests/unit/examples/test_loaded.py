"""The check that the site loads nothing from another host finds each way to do that."""

import pytest
from loaded import list_foreign, list_of_page, list_of_sheet


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://host/a.js"></script>',
        "<script async src=//host/a.js></script>",
        '<link rel="stylesheet" href="https://host/a.css">',
        '<link href="https://host/a.css" rel="stylesheet">',
        "<LINK HREF='HTTPS://host/a.css' REL='StyleSheet'>",
        '<link rel="preconnect" href="https://host">',
        '<link rel="shortcut icon" href="//host/a.ico">',
        "<img alt='a > b' src='http://host/a.png'>",
        '<img src="a.png" srcset="a.png 1x, https://host/a.png 2x">',
        '<video poster="https://host/a.png"></video>',
        '<object data="https://host/a.svg"></object>',
        "<style>@import 'https://host/a.css';</style>",
        '<p style="background: url(//host/a.png)">',
    ],
)
def test_what_a_page_loads_from_another_host_is_found(html):
    assert list_foreign(list_of_page(html))


@pytest.mark.parametrize(
    "html",
    [
        '<script src="assets/a.js"></script><link rel="stylesheet" href="../a.css">',
        '<img src="data:image/png;base64,//x">',
        '<a href="https://host/">there</a><link rel="canonical" href="https://host/"><p>url(https://host/)</p>',
    ],
)
def test_links_to_other_pages_are_loaded_by_readers_only(html):
    assert list_foreign(list_of_page(html)) == []


@pytest.mark.parametrize(
    "css", ["@import url(https://host/a.css);", '@import "//host/a.css";', "src: url( 'http://host/a.woff2' )"]
)
def test_what_a_stylesheet_loads_from_another_host_is_found(css):
    assert list_foreign(list_of_sheet(css))
    assert list_foreign(list_of_sheet("src: url(../a.woff2); --logo: url('data:image/svg+xml,<svg/>')")) == []
