"""Everyday words for what common MCP servers do, by area, and the words that their descriptions use.

For tools of mounted servers, as `_SAID` in `finding` is for Linckia's own. A word here never decides alone: it weighs
less than the task's own words.
"""

from __future__ import annotations

from typing import Final

SAID: Final = """
website, web site, site, webpage, web page, article, online, internet, homepage -> page url web browser fetch fetches
link, links, address -> url link
go to, visit, browse, surf -> navigate url browser
picture of, capture, how it looks, looks like, how the site looks, image of -> screenshot
elements, element, what is on the page, structure of the page -> snapshot accessibility element
tap, press, push -> click press
button, checkbox, menu item -> click
hit, shortcut, escape, arrow, enter key -> key press keyboard
popup, popped up, pop up, alert, confirm, prompt -> dialog
dropdown, drop down, select box, pick -> select option
text field, input field, search box, enter -> type text
form, sign up -> form fields fill
api calls, api call, ajax, xhr, http calls -> network requests
dark mode, color scheme, stylesheet, reduced motion, print layout -> media emulate
phone, mobile, viewport -> resize window
pause, until -> wait
javascript, script, snippet, js -> javascript code evaluate run
attach -> upload file
mouse over, tooltip -> hover
previous page -> back
folder, folders, mkdir -> directory
mkdir, make -> create
ls, inside, what is in, in here -> list listing
mv -> move
cat, load -> read
where is, find -> search find
permissions, modified, created, last modified, how big -> info metadata size
picture, photo, png, jpeg, image -> image media
mp3, song, sound -> audio media
overwrite, save -> write
layout, nested -> tree
several, multiple, all at once, in one go -> multiple
may use, allowed to -> allowed
repo, repository, codebase, working copy -> git repository working tree
which files have i modified, modified, changed, clean, uncommitted -> status changes
history, who committed, last commits -> log commits
stage -> add staging staged
compare, differ, what changed -> diff differences
go to branch, switch -> checkout switch
old version, revision -> revision show
person, people, company, companies, somebody -> entity entities
connect, connection, unlink, relate, related, works at, link -> relation relations
fact, facts, detail -> observation observations
mention, mentions, mentioning -> search query
complete, whole, everything, dump -> entire read
details, by name -> open specific names
drop, remove, erase, get rid of -> delete
rows, row, records, record, sql, orders, customers -> query database table
insert, set, change a value, old rows, delete rows -> insert update delete write query
how many, count, newest, total, sum of -> select read query
columns, fields of -> schema describe table
finding, memo -> insight
today, now, clock -> current time
in my timezone, what is it in -> timezone convert
think, reason, step by step, think through, break down -> thinking thoughts problem
plus, add up, calculate, compute -> sum numbers add
compress, zip, gz -> gzip compress
repeat, say back, bounce -> echo
slow, takes long, seconds -> long running operation duration
variables, env -> environment
fake, pretend -> simulate simulated
turn on, turn off, switch on, switch off, start sending, stop sending -> toggle
typed, json -> structured content schema
priority, audience -> annotations metadata
pointer, pointers -> links reference references
log, logs -> logging messages
notification, notifications -> updates messages
unstage, take back -> unstages reset staged
next commit, ready to commit -> staged commit
not added, not staged, since the last add -> unstaged working
commit hash, old revision -> show revision commit
author, who wrote -> log commits
first lines, last lines, lines, beginning, end of the file -> head tail text
edit, replace, correct, patch -> edit edits line
preview, without applying -> dry run
shut, quit -> close
errors, error, warnings -> messages console
responses, response, headers, status code -> request details body headers
window size, screen size -> resize width height
press and hold, pull -> drag
desktop -> drop outside
choose, pick one -> select option
fill in, complete the form -> fill fields form
new branch, start a branch, branch off -> create branch
date -> current time
html, source of the page -> raw fetch
add a person, new entity, new node, new nodes -> create entities
belongs to, works for, knows -> relation relations
look for, look up, hunt -> search find
table structure, structure -> schema describe
new table, set up a table -> create table
mail, e mail, inbox -> email message send
ticket, bug, defect -> issue
pr, merge request, pull request -> pull request merge
chat, slack, dm -> message channel post
appointment, meeting, schedule -> event calendar
to do, todo, reminder -> task
directions, route, map -> directions route map
pod, pods, container, containers -> container pod kubernetes docker
bucket -> storage object
invoice, payment, charge -> invoice payment customer
spreadsheet, excel -> sheet cells spreadsheet
translate -> translation language
weather, temperature -> weather forecast
"""
