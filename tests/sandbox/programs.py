"""Programs for the verdict: right ones with tests that they pass, and wrong ones that claim to be right."""

from __future__ import annotations

FIT = {
    "a number": (
        "def f(x): return x * x",
        """\

assert f(2) == 4
assert abs(f(3) - 9) < 1e-9
assert f(4) in (16,)
assert not f(5) != 25
assert sum(f(i) for i in range(3)) == 5
""",
    ),
    "a global value": (
        "LIMIT = 3",
        "assert LIMIT == 3",
    ),
    "a function that is handed over": (
        "def f(x): return x * x",
        """\
def check(candidate):
    assert candidate(3) == 9
check(f)\
""",
    ),
    "a standard module that nobody imported": (
        "def f(): return 0.1 + 0.2",
        "assert math.isclose(f(), 0.3)",
    ),
    "an import of the tests": (
        "def f(): return 'ab'",
        """\
import re
assert re.match('a.', f())\
""",
    ),
    "an argument changed in place": (
        "def s(l): l.sort()",
        """\
l = [3, 1]
s(l)
assert l == [1, 3]\
""",
    ),
    "a dict and a set changed in place": (
        """\
def s(d, e):
    d['b'] = [2]
    e.add(3)\
""",
        """\
d, e = {'a': [1]}, {1}
s(d, e)
assert d == {'a': [1], 'b': [2]} and e == {1, 3}\
""",
    ),
    "keywords": (
        "def f(a, *, b=0): return a - b",
        "assert f(1, b=3) == -2",
    ),
    "an exception": (
        """\
def f(x):
    if x < 0: raise ValueError('below 0')
    return x\
""",
        """\
try:
    f(-1)
except ValueError as error:
    assert 'below' in str(error)
else:
    assert False\
""",
    ),
    "a callback": (
        "def f(g, items): return [g(item) for item in items]",
        "assert f(lambda x: x + 1, [1]) == [2]",
    ),
    "a built-in function": (
        "def f(g, items): return sorted(items, key=g)",
        "assert f(len, ['aa', 'b']) == ['b', 'aa']",
    ),
    "a decorator": (
        "def f(g): return lambda x: g(x) + 1",
        "assert f(abs)(-2) == 3",
    ),
    "a generator": (
        """\
def f():
    yield 1
    yield 2\
""",
        """\
assert list(f()) == [1, 2]
assert next(f()) == 1\
""",
    ),
    "an iterator that is handed over": (
        "def f(items): return sum(items)",
        "assert f(x for x in [1, 2]) == 3",
    ),
    "a class": (
        """\
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x)
    def __len__(self): return len(self.items)
    def __getitem__(self, i): return self.items[i]
    def __str__(self): return f'<{len(self.items)}>'\
""",
        """\
s = Stack()
s.push('a')
s.push((1, 2))
assert s.items == ['a', (1, 2)] and len(s) == 2 and s[1] == (1, 2)
assert str(s) == '<2>' and s and 'a' in s
s.items = []
assert not s.items and s == s and s != Stack()\
""",
    ),
    "an object that is handed back": (
        """\
class Node:
    def __init__(self, value): self.value, self.next = value, None
def total(node): return 0 if node is None else node.value + total(node.next)\
""",
        """\
a, b = Node(1), Node(2)
a.next = b
assert total(a) == 3 and a.next.value == 2\
""",
    ),
    "containers": (
        """\
from collections import *
def f(): return Counter('aab')
def g(): return deque([1])
P = namedtuple('P', 'x y')
def h(): return P(1, 2), {(1, 2): {3}}, frozenset([4])\
""",
        """\
from collections import deque
assert f() == {'a': 2, 'b': 1} and g() == deque([1])
assert h() == ((1, 2), {(1, 2): {3}}, frozenset([4])) and isinstance(h()[2], frozenset)\
""",
    ),
    "numbers of every size": (
        """\
import math
def f(x): return math.factorial(x)
def g(): return [float('inf'), -0.0, 2.5, 1 + 2j, True, None]\
""",
        """\
assert f(3000) == math.factorial(3000)
assert g() == [math.inf, 0.0, 2.5, 1 + 2j, True, None]
assert type(g()[4]) is bool\
""",
    ),
    "words of every kind": (
        """\
def f(x): return x + '\\0\\n\\ud800\xe9'
def g(x): return bytes(x)\
""",
        "assert f('$') == '$\\0\\n\\ud800\xe9' and g([0, 255]) == b'\\x00\\xff'",
    ),
    "dates and fractions": (
        """\
from datetime import *
from fractions import *
from decimal import *
def f(d): return d + timedelta(days=1)
def g(): return Fraction(1, 3), Decimal('0.10')\
""",
        """\
from datetime import date, datetime
assert f(date(2020, 2, 28)) == date(2020, 2, 29)
assert f(datetime(2020, 1, 1, 3)) == datetime(2020, 1, 2, 3)
import fractions, decimal
assert g() == (fractions.Fraction(1, 3), decimal.Decimal('0.1'))\
""",
    ),
    "a name that the tests and the program both use": (
        """\
def f(x): return g(x)
def g(x): return 1\
""",
        """\
g = 2
assert f(g) == 1\
""",
    ),
    "what is printed is nobody's": (
        """\
print('hello')
def f():
    print('x' * 100000)
    return 1\
""",
        "assert f() == 1",
    ),
    "a dataclass with annotations": (
        """\
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class P:
    x: int\
""",
        "assert P(3).x == 3",
    ),
}
"""Permitted uses of a program by a test: (program, tests)."""

FORGERIES = {
    "frames": """\
import sys
def f(x):
    frame = sys._getframe(1)
    while frame:
        for name in ('verdict', 'tests', 'names'):
            if name in frame.f_locals: return frame.f_locals[name]
        frame.f_locals.update(passed=True)
        frame = frame.f_back
    return 0\
""",
    "memory": """\
import gc
def f(x):
    return [o for o in gc.get_objects() if 'assert f(' in str(o)[:10000]] or 0\
""",
    "files of the tests": """\
import glob, os
def f(x):
    for p in glob.glob('/proc/*/fd/*') + glob.glob('/proc/*/cmdline'):
        try:
            if 'assert' in open(os.open(p, os.O_NONBLOCK)).read(9999): return 4
        except Exception: pass
    return 0\
""",
    "equal to all": """\
class Liar:
    def __init__(self, *given): pass
    def __eq__(self, other): return True
    __hash__ = None
    def __ne__(self, other): return False
    def __sub__(self, other): return 0
    __radd__ = __add__ = __rsub__ = __sub__
    def __lt__(self, other): return True
    def __abs__(self): return 0
    def __float__(self): return 0.0
    def __contains__(self, item): return True
f = Liar\
""",
    "an int that is equal to all": """\
class I(int):
    def __eq__(self, o): return True
    def __sub__(self, o): return 0
    __hash__ = int.__hash__
    def __index__(self): return 4
def f(x): return I(0)\
""",
    "a text that is equal to all": """\
class S(str):
    def __eq__(self, o): return True
    __hash__ = str.__hash__
def f(x): return S('4')\
""",
    "a list that is equal to all": """\
class L(list):
    def __eq__(self, o): return True
    def __iter__(self): return iter([4])
    def __sub__(self, o): return 0
def f(x): return L([4])\
""",
    "another class's name": """\
class Liar:
    def __init__(self, *given): pass
    __class__ = int
    def __eq__(self, o): return True
f = Liar\
""",
    "a class for a function": """\
class f(int):
    def __eq__(self, o): return True\
""",
    "operators of the tests": """\
f = type('T', (), {'__getattr__': lambda s, n: lambda *a: True, '__call__': lambda s, x: s})()\
""",
    "os._exit at once": """\
import os
os._exit(0)\
""",
    "os._exit when asked": """\
import os
def f(x): os._exit(0)\
""",
    "SystemExit": "raise SystemExit(0)",
    "SystemExit when asked": "def f(x): raise SystemExit(0)",
    "an exception that passes for none": """\
class E(BaseException):
    def __str__(self): raise SystemExit(0)
def f(x): raise E\
""",
    "StopIteration": "def f(x): raise StopIteration(x * x)",
    "KeyboardInterrupt": "def f(x): raise KeyboardInterrupt",
    "a signal to itself": """\
import os, signal
def f(x): os.kill(os.getpid(), signal.SIGTERM)\
""",
    "atexit": """\
import atexit, os
atexit.register(lambda: [os.write(n, b'up\\npassed\\n') for n in range(9)])
raise SystemExit\
""",
    "printing": "print('up'); print('passed'); print('True', flush=True)",
    "every descriptor": """\
import os
for n in range(64):
    try: os.write(n, b'up\\npassed\\n')
    except OSError: pass\
""",
    "a descriptor of another process": """\
import glob
for p in glob.glob('/proc/[0-9]*/fd/*'):
    try: open(p, 'wb').write(b'passed\\n')
    except OSError: pass\
""",
    "replies nobody asked for": """\
import os
for n in range(3, 64):
    try: os.write(n, b'{"value":4}\\n' * 9)
    except OSError: pass
def f(x): return 0\
""",
    "a grandchild": """\
import os
if not os.fork():
    print('passed'); os._exit(0)
def f(x): return 0\
""",
    "built-ins": """\
import builtins
builtins.AssertionError = None
builtins.isinstance = lambda *a: True
builtins.len = lambda x: 4
builtins.abs = builtins.sum = lambda *a: 0
builtins.range = lambda *a: []
def f(x): return 0\
""",
    "the same names": """\
def abs(x): return 0
def sum(x): return 5
def isinstance(*a): return True
def f(x): return 0\
""",
    "the harness": """\
import sys
for m in list(sys.modules.values()):
    for n in list(vars(m)):
        if n in ('Peer', '_serve', '_ACTIONS', 'main'): setattr(m, n, lambda *a, **k: {'value': 4})
def f(x): return 0\
""",
    "the harness's class": """\
import sys
P = sys.modules['r2v.sandbox.wire'].Peer
P.encode = lambda self, value: {'$': 'builtin', 'v': 'exec'}
def f(x): return 0\
""",
    "a tracer": """\
import sys
sys.settrace(lambda *a: None)
sys.setprofile(lambda *a: None)
def f(x): return 0\
""",
    "__reduce__": """\
class Liar:
    def __init__(self, *given): pass
    def __reduce__(self): return (exec, ('import os; os._exit(0)',))
f = Liar\
""",
    "data beyond a message": "def f(x): return 'x' * (5 << 20)",
    "a list that holds itself": """\
def f(x):
    items = []
    items.append(items)
    return items\
""",
    "unhashable in a set": """\
import sys
sys.modules['r2v.sandbox.wire'].Peer.encode = lambda *a: {'$': 'set', 'v': [[1]]}
def f(x): return 0\
""",
}
"""Wrong answers to `assert f(2) == 4` and its like, by frames, objects, ends, output, patches and messages."""

RAW = {
    "half a line": '{"value":',
    "no object": "4",
    "an unknown kind": '{"value":{"$":"pickle","v":"gASV"}}',
    "a built-in": '{"value":{"$":"builtin","v":"exec"}}',
    "an object of the judge's": '{"value":{"$":"yours","v":0}}',
    "a call of what it holds": '{"ask":"call","object":0,"args":[],"names":[]}',
    "a name of the judge's": '{"ask":"name","name":"tests"}',
    "an attribute of the judge's": '{"ask":"attribute","object":0,"name":"__globals__"}',
    "another error": '{"raised":["SystemExit","0"]}',
    "an error of errors": '{"raised":["UnicodeDecodeError","0"]}',
    "an exit": '{"raised":["__import__(\'os\')._exit","0"]}',
    "nesting": "[" * 100_000 + "]" * 100_000,
}
"""Lines that are no reply."""
