"""`loaderx view`: pages of records, steps and stages, for a browser on this machine.

`looking` finds what a page shows, `pages` makes HTML of it, and `server` answers requests.  The
look of the pages is in ``page.html`` and ``viewer.css``; ``viewer.js`` makes the slider live, and
everything works without it.
"""
