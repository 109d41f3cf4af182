"""Common English words for generated prompts."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


OPENERS = _words(
    "maybe today often later first please why when how does could would should until because although meanwhile "
    "perhaps usually sometimes"
)
ADJECTIVES = _words(
    "small large quiet heavy early green narrow simple steady warm distant broken careful common daily deep familiar "
    "famous formal gentle hidden honest local modern natural open patient plain public rapid recent regular rough "
    "safe sharp silent smooth soft solid strange tall thin useful wide wooden young"
)
NOUNS = _words(
    "river market engine garden letter window station teacher winter bridge paper harbor kitchen machine mountain "
    "village doctor forest history journey language lesson library meeting morning museum neighbor number office "
    "orchard painter picture planet question recipe reason report road school season signal sister stone story street "
    "student summer ticket tower traffic valley visitor voice weather writer yard budget camera captain candle castle "
    "cotton dinner driver farmer flight friend guitar island jacket ladder lantern mirror needle notebook pencil "
    "pocket pepper pillow printer rocket sailor shelf shoulder silver singer spoon table theater thread tunnel "
    "umbrella wagon wallet whistle"
)
VERBS = _words(
    "carries follows explains repairs opens measures paints visits remembers changes answers builds checks closes "
    "compares crosses describes discovers draws finds gathers helps invites keeps leaves meets moves needs offers "
    "orders plans protects reads reaches returns sells shows studies supports teaches tests touches turns watches"
)
