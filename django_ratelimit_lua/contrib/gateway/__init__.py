"""The gateway: decides by the site's rules for proxies and for services in other languages.

It may import the rooms of the core, `management` included, but no models and no other optional app.
It must not know the views of the site: a request is only what a proxy or a descriptor reports.
"""
