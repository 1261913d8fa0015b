"""Domains and endings of OpenWebText's blacklist, as Megatron-LM's blacklist_urls.py has them."""

from __future__ import annotations

_DOMAINS = """
    500px aapks akamaihd amazon apple artifactfire artstation awwni bandcamp battleforthenet coinscalendar
    dailymotion deviantart discord discordapp dlapkandroid dropbox e621 ebay edealinfo erome eroshare explosm
    facebook fbcdn flickr furaffinity futhead gatopardo gfycat gifsound gifsoup giphy github google gunprime gyazo
    hotdealstar imagefap imageshack imgflip imgur instagram karmadecay kryptocal kym-cdn liveleak livememe lmgtfy
    magaimg memegenerator minorplanetcenter minus mobafire morejpeg nocookie pcpartpicker photobucket pinimg
    pinterest pixiv pornhub prntscr puu qkme quickmeme radd redd reddit reddit-stream redditlog redditmedia
    reddituploads redtube reupp reverb roanoke rollingstone sli soundcloud soundgasm spankbang spotify strawpoll
    streamable timeanddate tinypic touhouradio tumblr twimg twitch twitter vid vimeo vine vkaao vocaroo voyagefusion
    walmart wciu wikimedia wikipedia xhamster xkcd xvideos youtu youtube youtubedoubler ytimg zillexplorer
"""
_ENDINGS = """
    .3gp .aif .apk .app .avi .bin .bmp .bz2 .css .csv .dat .deb .dmg .doc .docx .exe .gif .gifv .gz .iso .jar .jpeg
    .jpg .js .log .mid .midi .mkv .mov .mp3 .mp4 .mpeg .mpg .ogg .ogv .otf .pdf .pkg .png .pps .ppt .pptx .psd .py
    .qt .ram .rar .sql .svg .swf .tar.gz .tar .tgz .tiff .ttf .txt .wav .webm .wma .wmv .xls .xlsx .xml .xz .zip
"""

DOMAINS = frozenset(_DOMAINS.split())
"""Names of domains without what they are registered under: media, shops, walls behind a login."""

ENDINGS = tuple(_ENDINGS.split())
"""What the URL of a file that is no page ends with."""

PATH_ENDINGS = (".7z", ".ai")
"""The same, but not of a URL that is a host alone: .ai is a top-level domain. Megatron-LM lists them as one, .7z.ai."""
