"""Times of day, or dates and times, of settings such as `finish_by` of a task."""

import re
from datetime import datetime, time, timedelta

CLOCK = re.compile(r"\d\d:\d\d")


def parse_finish_time(text: str, now: datetime, setting: str = "finish_by") -> datetime:
    """Return the instant that a setting means; a time of day is the next one after `now`.

    Raises ValueError for text that is neither `23:00` nor `2026-11-19 06:30`.
    """
    for form in ("%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M"):
        try:
            return datetime.strptime(text, form).replace(tzinfo=now.tzinfo)
        except ValueError:
            continue
    try:
        at = time.fromisoformat(text if CLOCK.fullmatch(text) else "")
    except ValueError:
        raise ValueError(
            f'{setting} is {text!r}; expected a time such as "23:00", or a date and a time '
            'such as "2026-11-19 06:30"'
        ) from None
    finish = datetime.combine(now.date(), at, now.tzinfo)
    return finish if finish > now else finish + timedelta(days=1)
