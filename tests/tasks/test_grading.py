"""Verdicts: extraction, format, GSM8K, MATH, the golds' forms, false accepts, fuzz, `grade_file`."""

import contextlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftis.errors import UserError
from ftis.tasks.grading.answers import NeedsAlgebra, compare
from ftis.tasks.grading.clean import MAX_CHARS
from ftis.tasks.grading.numbers import read_number
from ftis.tasks.grading.values import plain_number
from ftis.tasks.grading.verdict import (
    FORMATS,
    Verdict,
    extract,
    grade,
    grade_file,
    grade_many,
    is_fault,
)

DATA = Path(os.environ.get("FTIS_DATA", "data"))
TAG, BOX = "<think> w </think> <answer> %s </answer>", r"So the result is \boxed{%s}."

# Siblings of the shared cases: right or not | gold | answer.
GSM8K = r"""
yes | 18 | 18.0
yes | 18 | +18
yes | -5 | −5
yes | -5 | - 5
yes | -5 | -$5
yes | -5 | $-5
yes | -5 | minus 5
yes | -5 | negative 5
no  | 5 | minus 5
no  | 5 | -5
yes | 18 | £18
yes | 18 | €18
yes | 18 | € 18.00
yes | 18 | 18€
yes | 18 | 18 $
yes | 18 | $18$
yes | 18 | $18
yes | 18 | \$18
yes | 18 | \(18\)
yes | 18 | \boxed{18}
yes | 18 | The answer is \boxed{18}.
yes | 18 | **18**
yes | 18 | #### 18
no  | 18 | 18!
no  | 18 | 18?
yes | 1234.5 | $1,234.50
yes | 1234 | 1 234
yes | 1234 | 1\,234
yes | 1234 | 1{,}234
yes | 1234 | 1,\!234
yes | 1234567 | 1,234,567
no  | 1234567 | 1,234567
no  | 1234 | 12,34
no  | 1234 | 01,234
no  | 123 | 1.23
yes | 18 | 18%
yes | 18 | 18\%
yes | 18 | 18 percent
no  | 0.18 | 18%
yes | 0.5 | 1/2
yes | 0.5 | \frac{1}{2}
yes | 1.5 | 1 1/2
no  | 18 | 36/2
no  | 18 | 18/1
no  | 18 | \frac{36}{2}
no  | 18 | 9*2
no  | 18 | 9 x 2
no  | 18 | 20-2
no  | 18 | 9\times2
yes | 18 | 9 + 9 = 18
yes | 18 | 9+9 = $18
yes | 18 | 9+9=18 eggs
yes | 18 | x = 18
yes | 18 | x=18.
no  | 18 | 17=18
no  | 17 | 17=18
no  | 17 | 18=17
no  | 18 | x=17 or x=18
no  | 18 | x = 17, y = 18
yes | 18 | 9+9≈18
no  | 18 | 18 and 20
no  | 18 | 18, 20
no  | 18 | 18 20
no  | 18 | 18-20
no  | 18 | 18 to 20
no  | 18 | 17 or 18
no  | 18 | 18 or 18.5
no  | 18 | eighteen or 18
no  | 18 | 18 or twenty
no  | 18 | not 18
no  | 18 | it isn't 18
no  | 18 | at least 18
no  | 18 | at least  18
no  | 18 | 18  squared
no  | 18 | more than 18
no  | 18 | > 18
no  | 18 | <18
no  | 18 | 18+
no  | 18 | 18k
yes | 18000 | 18k
no  | 18 | 18 thousand
yes | 1500000 | 1.5 million
yes | 1500000 | $1.5 million
yes | 1500000 | 1.5  million
no  | 5 | 5 \text{ million}
yes | 18 | 1.8e1
no  | 18 | 18 and a half
no  | 18 | 18 1/2
no  | 18 | 18.5
no  | 18 | 18:00
no  | 5 | 5:30
yes | 18 | 18 hours
yes | 18 | 18 m^2
yes | 18 | 18 square meters
yes | 18 | 18 km/h
yes | 18 | $18/hour
yes | 18 | $18 per hour
yes | 18 | 18 years old
yes | 18 | 18-year-old
yes | 18 | 18 miles per hour.
yes | 18 | 18cm
no  | 18 | 18^2
no  | 18 | \sqrt{18}
no  | 18 | 18x
no  | 18 | x18
yes | 18 | He needs 18 more eggs.
yes | 18 | Janet makes $18 every day.
yes | 18 | the answer is: 18
yes | 18 | Answer: 18
yes | 18 | Total = 18 dollars
yes | 18 | total: $18
no  | 18 | 18 dollars and 50 cents
no  | 18.5 | 18 dollars and 50 cents
yes | 18 | (18)
yes | 18 | "18"
no  | 18 | 18 eggs, 3 left
no  | 18 | 3 boxes of 18
yes | 18 | 18\text{ eggs}
yes | 18 | 18\,\text{cm}
yes | 18 | 18^\circ
yes | 18 | 18°
no  | 18 | the total - 18
no  | 18 | eighteen
no  | 18 |
no  | 18 |
no  | 18 | none
no  | 18 | 18.0000000001
no  | 18 | 17.999999999999999999
no  | 18 | 18²
no  | 18 | ½
yes | 109200000 | 109,200,000
yes | 109200000 | 109.2 million
yes | 0 | 0
yes | 0 | -0
yes | 0 | 0.00
no  | 0 | zero
yes | 3 | 3 dozen
no  | 18 | 1 8
yes | 18 | #18
yes | 18 | USD 18
yes | 18 | 18 USD
yes | 18 | Rs. 18
no  | 18 | $ 18 . 00
no  | 18 | $.18
yes | 0.18 | $.18
yes | 0.18 | .18
yes | 18 | $18.
yes | 18 | $18.00.
yes | 18 | 18,
yes | 18 | 18;
no  | 18 | 18 = 9+9
yes | 18 | 18=18
yes | 18 | 9+9=17+1=18
no  | 18 | 9+9=17
no  | 18 | 2*9=18 and 3*6=18
no  | 18 | 2*9=18; 3*6=20
no  | 20 | 2*9=18; 3*6=20
no  | 18 | 2 * 9 = <<2*9=18>>18
yes | 18 | [18]
no  | 25 | 2**5
no  | 18 | 1,,234
no  | 5 | -5 = 5
yes | 18 | 18.0 = 18
no  | 123 | ,123
yes | -5 | (-5)
yes | 18 | $9 + $9 = $18
yes | 18 | Therefore, Janet makes $18 every day.
no  | 92 | 9*2
yes | 18 | *18*
no  | 18 | 1`8
no  | 18 | 1$$8
no  | 18 | x^2 = 18
yes | 18 | 3/4 of 24 = 18
no  | 18 | 18 thirds
no  | 18 | 18 squared
no  | 1234 | 1, 234
no  | 18 | 18 ± 1
no  | 18 | eighteen
no  | 18 | 9+9===18
yes | 18 | = 18
"""
MATH = r"""
yes | 5 | 5.0
yes | 5 | 5.
yes | 5 | $5$
yes | 5 | \text{5}
yes | 5 | \$5
yes | 5 | 5 \text{ cm}
yes | 5 | 5 cm
no  | 5 | 5abc
no  | 5 | 5 \text{ or more}
yes | 5 | x = 5
yes | 5 | 5 = x
no  | 5 | 2x = 5
no  | 5 | x - 5 = 0
yes | 5 | x+y=5
yes | 5 | 2+3=5
yes | 5 | 2+2=5
yes | 5 | 5=5
yes | 5 | x = 2+3 = 5
no  | 5 | x=4=5
no  | 5 | x > 5
no  | 5 | x \ge 5
no  | 5 | x \neq 5
no  | 5 | 5 \text{ and } 6
no  | 5 | 5; 6
no  | 5 | 5,6
no  | 5 | \{5\}
yes | 5 | (5)
yes | 5 | ((5))
yes | 5 | \frac{10}{2}
yes | 5 | \sqrt{25}
yes | 5 | 5\%
no  | 5 | 0.05
no  | 5 | 500\%
yes | 50\% | 50
yes | 50\% | 50%
no  | 50\% | 0.5
no  | 50\% | \frac{1}{2}
yes | 50\% | 50\text{ percent}
no  | 50\% | 5\%
no  | \frac{1}{2} | 50\%
yes | \frac{1}{2} | .5
yes | \frac{1}{2} | 1/2
yes | \frac{1}{2} | \dfrac{1}{2}
yes | \frac{1}{2} | \tfrac12
yes | \frac{1}{2} | \frac{2}{4}
no  | \frac{1}{2} | -\frac{1}{2}
no  | \frac{1}{2} | 2
no  | \frac{1}{3} | 0.3333333333333333
yes | -\frac{1}{2} | \frac{-1}{2}
yes | -\frac{1}{2} | \frac{1}{-2}
yes | 1\frac{4}{5} | \frac{9}{5}
yes | 1\frac{4}{5} | 1.8
yes | 1\frac{4}{5} | 1 4/5
no  | 1\frac{4}{5} | \frac{4}{5}
yes | 10,\!080 | 10080
yes | 10,\!080 | 10,080
yes | 10,\!080 | 10{,}080
yes | 10,\!080 | 10\,080
no  | 10,\!080 | 10,80
no  | 10,\!080 | 10.080
yes | 58,500 | 58500
no  | 58,500 | 58.5
yes | 1,2,3 | 3,2,1
yes | 1,2,3 | \{1,2,3\}
no  | 1,2,3 | (1,2,3)
no  | 1,2,3 | 1,2,3,4
yes | 1,2,3 | 1, 2, \text{ and } 3
no  | 1,2,3 | 1,2,2
yes | 1,-2 | x=1 \text{ or } x=-2
yes | 1,-2 | -2, 1
no  | 1,-2 | (1,-2)
no  | 1,-2 | 1
yes | \{1\pm\sqrt{5},-2\} | \{-2,1-\sqrt5,1+\sqrt5\}
no  | \{1\pm\sqrt{5},-2\} | \{-2,1+\sqrt5\}
yes | 1 \pm \sqrt{19} | 1+\sqrt{19}, 1-\sqrt{19}
no  | 1 \pm \sqrt{19} | 1+\sqrt{19}
yes | 1 \pm \sqrt{19} | x = 1 \pm \sqrt{19}
yes | 3 \pm 2 \sqrt{2} | 3 \pm \sqrt{8}
yes | (1,2) | (1, 2)
yes | (1,2) | \left(1,2\right)
yes | (1,2) | (1.0,\frac{4}{2})
no  | (1,2) | 1,2
no  | (1,2) | [1,2]
no  | (1,2) | \{1,2\}
no  | (1,2) | (1,2,3)
no  | (1,2) | (1,2)\cup(3,4)
yes | (1,2) | (x,y)=(1,2)
no  | (1,2) | x=1,y=2
yes | (100,200) | (100,200)
no  | (100,200) | (100200)
yes | (-\infty, 0] | (-\infty,0]
no  | (-\infty, 0] | (-\infty,0)
yes | (-\infty, 0] | x \le 0
no  | (-\infty, 0] | x < 0
no  | (-\infty, 0] | (\infty,0]
yes | (2,\infty) | (2,+\infty)
yes | (2,\infty) | x>2
no  | (2,\infty) | (-\infty,2)
yes | (-\infty, 2) \cup (3, \infty) | (3,\infty)\cup(-\infty,2)
no  | (-\infty, 2) \cup (3, \infty) | (-\infty, 2)
no  | (-\infty, 2) \cup (3, \infty) | (-\infty, 2] \cup (3, \infty)
yes | (-\infty, 2) \cup (3, \infty) | x<2 \text{ or } x>3
no  | (-\infty, 2) \cup (3, \infty) | (-\infty, 2) \cap (3, \infty)
yes | x \in [-2,7] | [-2,7]
yes | x \in [-2,7] | -2 \le x \le 7
no  | x \in [-2,7] | -2 < x < 7
no  | x \in [-2,7] | (-2,7)
yes | 30^\circ | 30 \text{ degrees}
yes | 30^\circ | 30°
yes | 30^\circ | 30^{\circ}
yes | 30^\circ | \angle ABC = 30^\circ
no  | 30^\circ | \frac{\pi}{6}
no  | 30^\circ | 60^\circ
no  | 30^\circ | 30 \text{ radians}
yes | 3\text{ m} | 3
yes | 3\text{ m} | 3 \text{ meters}
no  | 3\text{ m} | 3\text{ m}^2
yes | 15\mbox{ cm}^2 | 15 \text{ cm}^2
yes | 15\mbox{ cm}^2 | 15
yes | 15\mbox{ cm}^2 | 15\,\mathrm{cm}^2
yes | 15\mbox{ cm}^2 | 15 \text{ square centimeters}
no  | 15\mbox{ cm}^2 | 15 \text{ cm}^3
no  | 15\mbox{ cm}^2 | 15^2
yes | 864 \mbox{ inches}^2 | 864 \text{ in}^2
yes | 864 \mbox{ inches}^2 | 864 \text{ square inches}
yes | 5.4 \text{ cents} | 5.4
no  | 5.4 \text{ cents} | \$5.4
yes | \$18.90 | 18.9
yes | \$18.90 | 18.90 \text{ dollars}
yes | \$18.90 | \text{\$}18.90
yes | \$32,\!348 | 32348
yes | \$32,\!348 | \$32,348
yes | 2516_8 | 2516_{8}
yes | 2516_8 | 2516_{\text{8}}
no  | 2516_8 | 2516
no  | 2516_8 | 2516_7
no  | 2516_8 | 1358
yes | 4210_{5} | 4210_5
yes | 5:30 | 5:30
yes | 5:30 | 5:30 \text{ p.m.}
no  | 5:30 | 5
no  | 5 | 5:30
yes | x^2+2x+1 | 1+2x+x^2
no  | x^2+2x+1 | x^2+2x
no  | x^2+2x+1 | y^2+2y+1
yes | x^2+2x+1 | f(x)=x^2+2x+1
no  | x^2+2x+1 | x^2+2x+1=0
no  | x^2+2x+1 | (x+1)^3
yes | 3x+4y=1 | 6x+8y=2
yes | 3x+4y=1 | 4y+3x=1
yes | 3x+4y=1 | 3x+4y-1=0
no  | 3x+4y=1 | 3x+4y
no  | 3x+4y=1 | 3x+4y=2
yes | 3x+4y=1 | y=\frac{1-3x}{4}
no  | 3x+4y=1 | 0=0
yes | y = 2x + 3 | 2x+3
yes | y = 2x + 3 | y=3+2x
yes | y = 2x + 3 | 2x - y + 3 = 0
no  | y = 2x + 3 | y=2x-3
yes | x=5 | 5
no  | x=5 | y=5
no  | x=5 | 2x=10
yes | 5x - 7y + 11z + 4 = 0 | -5x+7y-11z-4=0
no  | 5x - 7y + 11z + 4 = 0 | 5x - 7y + 11z + 4
no  | 5x - 7y + 11z + 4 = 0 | 5x - 7y + 11z - 4=0
yes | \text{(B)} | B
yes | \text{(B)} | (B)
yes | \text{(B)} | \textbf{(B)}
yes | \text{(B)} | \text{B}
no  | \text{(B)} | C
no  | \text{(B)} | (A) or (B)
no  | \text{(B)} | AB
yes | \text{Evelyn} | evelyn
yes | \text{Evelyn} | \textbf{Evelyn}
no  | \text{Evelyn} | Evelyn or Navin
no  | \text{Evelyn} | not Evelyn
no  | \text{Evelyn} | Evely
yes | \text{even} | \text{Even}
no  | \text{even} | odd
no  | \text{even} | uneven
yes | \text{ ellipse} | an ellipse
no  | \text{east} | west
yes | 12\pi | 12 \cdot \pi
yes | 12\pi | \pi 12
no  | 12\pi | 37.699
no  | 12\pi | 37.69911184307752
no  | 12\pi | 12
yes | 1+2i | 2i+1
no  | 1+2i | 1-2i
yes | 1+2i | 1+2\sqrt{-1}
yes | \sqrt{3} | \frac{3}{\sqrt{3}}
yes | \sqrt{3} | 3^{1/2}
no  | \sqrt{3} | 1.732
no  | \sqrt{3} | -\sqrt3
no  | \sqrt{3} | \pm\sqrt3
yes | \cot x | \frac{\cos x}{\sin x}
yes | \cot x | \frac{1}{\tan x}
no  | \cot x | \tan x
yes | \begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix} | \begin{pmatrix} -\frac13 \\ \frac23 \\ \frac53 \end{pmatrix}
yes | \begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix} | \begin{pmatrix}-1&0\\0&-1\end{pmatrix}
no  | \begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix} | \begin{pmatrix}-1&0\\0&1\end{pmatrix}
no  | \begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix} | \begin{vmatrix}-1&0\\0&-1\end{vmatrix}
no  | \begin{pmatrix} 1 \\ 2 \end{pmatrix} | \begin{pmatrix} 1 & 2 \end{pmatrix}
no  | \begin{pmatrix} 1 \\ 2 \end{pmatrix} | \begin{pmatrix} 2 \\ 1 \end{pmatrix}
no  | \begin{pmatrix} 1 \\ 2 \end{pmatrix} | (1,2)
yes | .0000672 | 6.72 \times 10^{-5}
yes | .0000672 | 0.0000672
yes | .0000672 | 0.00006720
no  | .0000672 | 0.000067
yes | 2k | 2k
yes | 2k | k2
no  | 2k | 2
yes | 3R^2 | 3R^2
no  | 3R^2 | 3r^2
no  | 3R^2 | 3R^3
yes | p - q | -q+p
no  | p - q | q-p
yes | 6r^2-4r-24 | 2(3r^2-2r-12)
yes | \frac{11+9a}{20} | \frac{9a}{20}+\frac{11}{20}
yes | \frac{20000}{\pi} | 20000/\pi
no  | \frac{20000}{\pi} | 20000\pi
yes | 5 | The answer is $5$.
yes | 5 | The answer is 5
no  | 5 | The answer is not 5
no  | 5 | $5$ or $6$
no  | 5 | $4$, no, $5$
yes | 5 | \boxed{5}
yes | 5 | \displaystyle 5
yes | 5 | 5\\
no  | 7 | 7!
yes | 5040 | 7!
no  | 5 | 3 4
no  | 34 | 3 4
no  | 5 | 5 (not 6)
no  | 5 | five
no  | 5 | \text{five}
no  | 5 | ?
no  | 5 | 5?
no  | 5 | \approx 5
no  | 5 | 5 \text{ million}
yes | 5000000 | 5 \text{ million}
yes | 27 | 3^3
yes | \frac{\pi}{2} | \pi/2
yes | \left( 3, \frac{\pi}{2} \right) | (3, \pi/2)
no  | \left( 3, \frac{\pi}{2} \right) | (3, 90^\circ)
yes | \left(\frac{3}{5},\frac{8}{3}\right] | (0.6, \frac83]
no  | \left(\frac{3}{5},\frac{8}{3}\right] | (\frac35,\frac83)
yes | \left[ \frac{\pi^2}{8}, \frac{5 \pi^2}{4} \right] | [\frac{1}{8}\pi^2, 1.25\pi^2]
yes | 11 \sqrt{5} + 11 | 11(1+\sqrt5)
yes | 137 \frac{1}{2} | 137.5
yes | 137 \frac{1}{2} | \frac{275}{2}
no  | 137 \frac{1}{2} | 137
yes | \frac{270}7\text{ degrees} | \frac{270}{7}^\circ
yes | \frac{270}7\text{ degrees} | \frac{270}{7}
no  | 25 | 2**5
no  | x^2+2x+1 | 0 = x^2+2x+1
yes | 5x - 7y + 11z + 4 = 0 | 0 = 5x - 7y + 11z + 4
no  | 5 | 5 \text{ squared}
no  | 5 | 5 \text{ and a half}
no  | 5 | 5 \pmod 7
no  | 3.92 | 5.6.7
yes | \frac{1}{3} | 0.\overline{3}
yes | \frac{1}{6} | 0.1\overline{6}
no  | \frac{1}{3} | 0.\overline{33}1
yes | 3\sqrt{2} | 3*sqrt(2)
yes | 3\sqrt{2} | 3√2
yes | 3\sqrt{2} | \sqrt[2]{18}
no  | 3\sqrt{2} | 3\sqrt{3}
yes | 12\pi | 12pi
yes | 12\pi | 12*pi
yes | \begin{pmatrix} 1 \\ 2 \end{pmatrix} | \left[\begin{array}{c} 1 \\ 2 \end{array}\right]
yes | \begin{pmatrix} 1 \\ 2 \end{pmatrix} | \left(\begin{matrix} 1 \\ 2 \end{matrix}\right)
yes | 3\text{ m} | 3 m
no  | 3\text{ m} | 4 m
no  | 3 | 3 m
no  | 3\text{ m} | 3 s
yes | \{1,2,3\} | {3,1,2}
yes | \{1,2,3\} | \left\{1,3,2\right\}
no  | \{1,2,3\} | \{1,2\}
no  | \{1,2,3\} | (1,2,3)
yes | 3x+4y=1 | y=-\frac34x+\frac14
no  | 25 | x^2=25
yes | 5 | \overline{AB} = 5
yes | 5 | f(2) = 5 \text{ cm}
yes | \frac{1}{2} | 1 \div 2
yes | \frac{1}{2} | 2^{-1}
no  | \frac{1}{2} | \frac{1}{2}x
no  | 1234 | 1, 234
yes | (-\infty, 0] | x\le0
yes | 58,500 | x = 58,500
yes | 1,-2 | $1$ and $-2$
no  | 5 | 4 = x = 5
no  | 3\pi | 3.000000000000000000001\pi
no  | \sqrt{2} | 1.4142135623730950488016887242096980785696718753769
"""


def table(text):
    """[(right, gold, answer)] of a table above; `\n` in an answer is a new line."""
    rows = [re.split(r" \| ?", line, maxsplit=2) for line in text.strip().splitlines()]
    return [(right.strip() == "yes", gold, answer) for right, gold, answer in rows]


def golds(name):
    path = DATA / name / "test.jsonl"
    if not path.exists():
        pytest.skip(f"no {path}: set FTIS_DATA to the folder with gsm8k/ and math500/")
    rows = [json.loads(line) for line in path.open()]
    return [row["answer"].rpartition("####")[2].strip() for row in rows]


def wrong_verdicts(items, expected):
    """The items whose verdict isn't the expected one, or is none at all."""
    verdicts = grade_many(items)
    assert len(verdicts) == len(items)
    return [
        (gold, v.extracted, v.reason, right)
        for (_, gold, _), v, right in zip(items, verdicts, expected, strict=True)
        if v.answer != right or is_fault(v)
    ]


@pytest.mark.parametrize("name, count", [("grading", 60), ("grading_2", 74)])
def test_shared_cases(name, count):
    path = DATA.parent / "cases" / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"no {path}: set FTIS_DATA to the data folder that lies beside cases/")
    rows = [json.loads(line) for line in path.open()]
    assert len(rows) == count
    since = time.monotonic()
    verdicts = grade_many([(r["completion"], r["gold"], r["task"]) for r in rows])
    assert [(r["id"], v.answer) for r, v in zip(rows, verdicts, strict=True)] == [
        (r["id"], r["correct"]) for r in rows
    ]
    assert time.monotonic() - since < 60


@pytest.mark.parametrize("shape", [TAG, BOX])
def test_gsm8k_siblings(shape):
    rows = [row for row in table(GSM8K) if shape == TAG or row[2].count("{") == row[2].count("}")]
    assert (
        wrong_verdicts([(shape.replace("%s", a), g, "gsm8k") for _, g, a in rows], [r for r, _, _ in rows])
        == []
    )


@pytest.mark.parametrize("shape", [TAG, BOX])
def test_math_siblings(shape):
    rows = table(MATH)
    assert (
        wrong_verdicts([(shape.replace("%s", a), g, "math500") for _, g, a in rows], [r for r, _, _ in rows])
        == []
    )


@pytest.mark.parametrize(
    "completion, text, reason",
    [
        ("<answer>17</answer> no, <answer>18</answer>", "18", ""),
        ("<answer>18</answer> and <answer>17", "18", ""),  # the last complete one
        ("<answer><answer>18</answer>", "18", ""),
        ("<answer>18</answer></answer>", "18", ""),
        ("</answer>18<answer>", None, "unclosed"),
        ("<answer>18", None, "unclosed"),
        (r"<answer>18</answer> \boxed{17}", "18", ""),  # a tag goes before a box
        (r"\boxed{17} <answer>18</answer>", "18", ""),
        (r"<answer></answer> \boxed{18}", None, "empty"),
        (r"<answer> so \boxed{18} </answer>", "18", ""),
        (r"\boxed{17} <answer> 18", "17", ""),
        (r"\boxed{\boxed{5}}", r"\boxed{5}", ""),
        (r"\boxed{7 and \boxed{5}", "5", ""),
        (r"\boxed{\{1,2\}}", r"\{1,2\}", ""),
        (r"\boxed{\frac{1}{2}", None, "unclosed"),
        (r"{ \boxed{5}", "5", ""),
        (r"} \boxed {5}", "5", ""),
        (r"\fbox{5}", "5", ""),
        (r"$\boxed 5$", "5", ""),
        (r"\boxed 5", None, "unclosed"),  # may be cut
        ("The answer is 5", None, "no_answer"),
        ("#### 5", None, "no_answer"),
        ("", None, "no_answer"),
        (r"\boxed{" + "1" * 5000 + "}", None, "too_long"),
    ],
)
def test_extraction(completion, text, reason):
    assert extract(completion) == (text, reason)


@pytest.mark.parametrize(
    "completion, shapes",
    [
        ("<think> a </think> <answer> 1 </answer>", "any code open strict tag"),
        ("<think> a </think> <answer> 1 </answer>\n", "any code open strict tag"),
        ("<think> a </think> <answer> 1 </answer>\n\n", "any open strict tag"),
        (" a </think> <answer> 1 </answer>", "any open tag"),
        ("<think> a </think> <answer> 1 </answer> 2", "any tag"),
        ("<answer> 1 </answer>", "any tag"),
        ("<answer> 1 </answer> <think> a </think>", "any tag"),
        ("<think> a <think> b </think> <answer> 1 </answer>", "any tag"),
        ("<think> a </think> <answer> 1 </answer> <answer> 1 </answer>", "any"),
        ("<think> a </think> <answer> 1", ""),
        (r"so \boxed{1}", "any boxed"),
        ("", ""),
    ],
)
def test_formats(completion, shapes):
    assert " ".join(sorted(name for name, right in FORMATS.items() if right(completion))) == shapes


def test_the_three_verdicts_are_apart():
    right = TAG % "18"
    assert (v := grade(right, "18", "gsm8k")).answer and v.format and v.reward == 1.0 and v.reason == "equal"
    assert (v := grade(right + " 18", "18", "gsm8k")).answer and not v.format and v.reward == 0.0
    assert not (v := grade(right, "19", "tiny")).answer and v.format and v.reward == 0.0
    assert grade("<answer>18</answer>", "18", "gsm8k", shape="tag").reward == 1.0
    assert grade(TAG % "18", "#### 18", "gsm8k").answer  # a whole GSM8K answer as gold


def test_bad_calls():
    with pytest.raises(UserError, match="format"):
        grade("", "1", "gsm8k", shape="loose")
    with pytest.raises(UserError, match="task"):
        grade("", "1", "aime")
    with pytest.raises(ValueError, match="no number"):
        grade("", "many", "gsm8k")
    with pytest.raises(ValueError, match="empty"):
        grade("", " ", "math500")


def test_an_unreadable_gold_is_a_fault_and_no_wrong_answer():
    verdict = grade(r"\boxed{5}", "4=5", "math500")
    assert not verdict.answer and is_fault(verdict) and verdict.reason == "error: gold contradiction"


FORMS = [
    *(
        BOX,
        r"$\boxed{%s}$",
        r"\[ \boxed{ %s } \]",
        r"\boxed{%s.}",
        r"\boxed{$%s$}",
        r"\fbox{%s}",
        r"\boxed{\text{%s}}",
    ),
    *(
        TAG,
        "<answer>$%s$</answer>",
        "<answer> $%s$. </answer>",
        r"<answer>\(%s\)</answer>",
        r"<answer>\[ %s \]</answer>",
    ),
    *(
        "<answer>$$%s$$</answer>",
        "<answer> %s. </answer>",
        r"<answer> $\boxed{%s}$. </answer>",
        "<answer>**%s**</answer>",
    ),
    *("<answer>The answer is $%s$.</answer>", "<answer>The final answer is: %s</answer>"),
]
SPELLINGS = [
    lambda g: g,
    lambda g: g.replace(r"\frac", r"\dfrac"),
    lambda g: re.sub(r"^\((.*)\)$", r"\\left(\1\\right)", g),
    lambda g: g.replace(r"\left", "").replace(r"\right", ""),
    lambda g: re.sub(r"(?<![a-zA-Z\d]) | (?![a-zA-Z\d])", "", g),
    lambda g: re.sub(r",\\! ?", ",", g),
    lambda g: re.sub(r",\\! ?", "", g),
    lambda g: re.sub(r"\\(text|mbox)", r"\\mathrm", g),
    lambda g: g.replace(r"^\circ", "°").replace(r"\pi", "π").replace("-", "−"),
    lambda g: g.replace("pmatrix", "bmatrix"),
    lambda g: re.sub(r"\s*\\(text|mbox)\{[^{}()]*\}(\^2)?$", "", g) or g,
    lambda g: re.sub(r"\\text\{([^{}]*)\}", r"\1", g),
    lambda g: g.replace(r"\$", ""),
    lambda g: g + ".0" if re.fullmatch(r"-?\d+", g) else g,
]


def test_math_golds_grade_themselves():
    items = []
    for gold in golds("math500"):
        items += [(form.replace("%s", gold), gold, "math500") for form in FORMS]
        texts = dict.fromkeys(spell(gold) for spell in SPELLINGS)
        items += [(form.replace("%s", text), gold, "math500") for form in (TAG, BOX) for text in texts]
    assert len({gold for _, gold, _ in items}) > 250
    assert wrong_verdicts(items, [True] * len(items)) == []


def test_gsm8k_golds_grade_themselves():
    spellings = [
        "%s",
        "%s.00",
        "$%s",
        r"\$%s",
        "%s dollars",
        "$%s per day",
        "%s%%",
        r"%s\%%",
        "x = %s",
        "9 + 9 = %s eggs",
    ]
    items = []
    for gold in golds("gsm8k"):
        plain = gold.replace(",", "")
        texts = [spelling % n for spelling in spellings for n in (plain, f"{int(plain):,}")]
        items += [(form.replace("%s", text), gold, "gsm8k") for form in (TAG, BOX) for text in texts]
        items += [
            (form.replace("%s", f"{int(plain):,}".replace(",", "{,}")), gold, "gsm8k") for form in FORMS
        ]
    assert wrong_verdicts(items, [True] * len(items)) == []


def test_no_false_accepts_in_gsm8k():
    distinct = list({gold.replace(",", ""): gold for gold in golds("gsm8k")}.values())[:200]
    items = [(TAG % other, gold, "gsm8k") for gold in distinct for other in distinct if gold != other]
    assert not any(v.answer for v in grade_many(items))


# Accepted though the strings differ: a unit that one side leaves out, and `x=5` for `5`.
SAME_BY_RULE = {
    ("90", r"90^\circ"),
    ("120", r"120^\circ"),
    ("36", r"36^\circ"),
    ("5", "x=5"),
    ("15", r"15\mbox{ cm}^2"),
}


def test_no_false_accepts_in_math():
    every, rng = golds("math500"), random.Random(1)
    pairs = [(gold, other) for gold in every for other in rng.sample(every, 6) if other != gold]
    verdicts = grade_many([(BOX % other, gold, "math500") for gold, other in pairs])
    accepted = {tuple(sorted(pair)) for pair, v in zip(pairs, verdicts, strict=True) if v.answer}
    assert accepted <= {tuple(sorted(pair)) for pair in SAME_BY_RULE}


@pytest.mark.parametrize(
    "inserted", [*map(chr, range(32, 127)), r"\,", r"\cdot", "{}", "**", "$$", "−", "\x00", r"\text{ a}"]
)
def test_a_mark_inside_a_number_makes_another_number(inserted):
    items = [(shape % f"1{inserted}8", "18", task) for shape in (TAG, BOX) for task in ("gsm8k", "math500")]
    assert [v.extracted for v in grade_many(items) if v.answer] == []


def test_long_and_deep_completions_are_quick():
    bombs = [
        "\\boxed{" * 200_000,
        "<answer>" * 200_000,
        "{" * 10**6 + "}" * 10**6,
        "(" * 10**6,
        "\\boxed{5" * 100_000,
    ]
    bombs += ["<think>" * 10**5 + "</answer>" * 10**5, "1" * 10**6, "\\" * 10**6, "$" * 10**6, "\x00" * 10**6]
    inside = [
        bit * (1900 // len(bit))
        for bit in ["1", "1.", "_a", r"\frac1", " ", "a ", "$", ",", "=", "-", "1 ", r"\text{a}"]
    ]
    items = [(bomb, "5", task) for bomb in bombs for task in ("gsm8k", "math500")]
    items += [
        (shape % (a + b), "5", task)
        for a in inside
        for b in ("!", "x")
        for shape in (TAG, BOX)
        for task in ("gsm8k", "math500")
    ]
    since = time.monotonic()
    verdicts = grade_many(items, limit_s=2)
    assert not any(v.answer for v in verdicts) and time.monotonic() - since < 30
    assert max(v.seconds for v in verdicts) < 3


@contextlib.contextmanager
def cpu_limit(seconds, what):
    """Fails a test in the middle of a match, however loaded the machine is: a cubic pattern takes minutes."""

    def stop(*_):
        pytest.fail(f"more than {seconds} s for {what}")

    old = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)


# What a pattern here repeats, and what it looks for after a repetition.
PUMPS = [
    *(" ", "\n", " \n", "\u2009", "\u2003", "\x1c", "\x00", "*", "~", "a ", "a\u2003", "a", "a-", "a/", "a.", "'", '"'),
    *("5", "5 ", "5,", ",", "1,234", ".", "5.", "5/", "5e", "%", "-", "- ", "+", "=", "=5", "x=", "<", "?", ";", "(", ")"),
    *("minus ", "USD ", "or ", "is ", "the ", "million ", "<answer>", "<think>", "°", "÷", "²", "_", "^", "|", "[", "$", "$ "),
    *("{", "}", "{}", "{,}", "\\", r"\$", r"\,", r"\!", r",\!", r"\\", r"\\[", r"\{", r"\boxed{", r"\boxed ", r"\boxed 5 "),
    *(r"\text{", r"\text ", r"\text{a}", r"\frac", r"\frac1", r"\frac{1}", r"\quad", r"\circ", r"\pm ", r"\in ", r"\le "),
    *("sqrt(", r"\begin{pmatrix}", r"\end{pmatrix}", r"\overline{"),
    *("√", "√5 ", "×10", "5×10^", "¹", "₁", "½", "—", " — ", "!", "a!", "**", "5**", "1e", "1e5", "1.5e5 ", "1,000", ", 1,000"),
    *("base ", "_{", "_8", "(8)_", "ways ", "of them ", "per ", "million ", "twenty ", "twenty-", "(two) ", "5 (", "5 000 "),
    *(r"\approx ", r"\ne ", r"\mathrm{e}", r"\{x|", r"\choose", "]", "[,", r"\mathbb{R}", r"5\begin{pmatrix}", "a+", "x=1,"),
]  # fmt: skip
FRAMES = [
    *("%s", "%s!", "The answer is%sabout "
                   "5", "$5%s}", "x =%s5", r"\text{%s}", "^%s", "a^%s!", "5/%s!", "5%s/5"),
    *(r"\frac{5}{%s", r"\frac{%s}{5!}", "(" * 29 + "x = %s" + ")" * 29),
]  # fmt: skip


def test_no_answer_takes_the_grader_long():
    """The patterns that run without a killable worker, on all that they repeat, at the length that they
    accept."""
    longest = MAX_CHARS
    for pump in PUMPS:
        times = longest // len(pump)
        texts = [frame % (pump * (times - len(frame) // len(pump) - 1)) for frame in FRAMES]
        # As much before a sign as after it: the product of two repetitions.
        half = pump * (times // 2 - 1)
        texts += [half + "/" + half + "!", half + "^" + " " * (longest // 3) + "!"]
        for text in texts:
            with cpu_limit(1, (text[:40], text[-40:])):
                read_number.__wrapped__(text)
                plain_number.cache_clear()
                with contextlib.suppress(NeedsAlgebra):
                    compare("5", text)
        completion = pump * (20_000 // len(pump))
        for shape in ("%s", "<answer>%s", TAG, r"\boxed 5%s"):
            with cpu_limit(1, (shape, pump)):
                extract(shape % completion)
                for right_format in FORMATS.values():
                    right_format(shape % completion)


PIECES = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        r"\boxed{",
        "}",
        "{",
        "18",
        "5",
        "1,234",
        "-",
        "$",
        r"\frac",
        "{1}{2}",
        r"\text{ cm}",
        " or ",
        "=",
        "x",
        "^",
        "_",
        "(",
        ")",
        r"\{",
        r"\}",
        ",",
        "%",
        r"\sqrt",
        r"\pm",
        r"\cup",
        "\x00",
        "é",
        "�",
    ]
)


@settings(
    max_examples=int(os.environ.get("FTIS_FUZZ", "300")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    st.lists(
        st.tuples(
            st.lists(PIECES | st.text(max_size=8), max_size=12).map("".join),
            st.sampled_from(["18", r"\frac{1}{2}", "(1,2)"]),
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_fuzz_no_crash_no_order_error(pairs, boxed):
    """Mutated completions: no exception, no hang, and each verdict belongs to its own completion."""
    shape = r"\boxed{%s}" if boxed else "%s"
    items = [
        (shape.replace("%s", text), gold, "math500" if gold != "18" or boxed else "gsm8k")
        for text, gold in pairs
    ]
    verdicts = grade_many([*items, (TAG % "18", "18", "gsm8k")])
    assert [(v.extracted, v.format) for v in verdicts[:-1]] == [
        (extract(c)[0], FORMATS["strict"](c)) for c, _, _ in items
    ]
    assert (
        all(isinstance(v, Verdict) and v.reward == float(v.answer and v.format) for v in verdicts)
        and verdicts[-1].answer
    )
    assert not any(v.reason in ("died", "timeout") for v in verdicts)


@settings(max_examples=200, deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9))
def test_fuzz_numbers_are_exact(number):
    assert read_number(f"${abs(number):,}")[0] == abs(number)
    assert read_number(f"{number} dollars")[0] == number


def test_plain_answers_are_fast_and_start_no_worker():
    code = (
        "import sys, time; from ftis.tasks.grading.verdict import grade_many\n"
        "work = '<think> ' + 'work ' * 40 + '</think> <answer> '\n"
        "items = [(f'{work}{i % 977} </answer>', str(i % 1009), 'gsm8k') for i in range(20000)]\n"
        "since = time.process_time(); grade_many(items); print(20000 / (time.process_time() - since))\n"
        "assert not {'torch', 'sympy', 'math_verify', 'ftis.tasks.grading.pool'} & set(sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(out) > 20_000


def lines(*rows):
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def test_grade_file(tmp_path):
    path, out = tmp_path / "in.jsonl", io.StringIO()
    good = {"task": "gsm8k", "gold": "18", "completion": TAG % "$18", "id": "a"}
    path.write_text(lines(good, "", {"task": "math500", "gold": "5", "completion": r"\boxed{6}"}))
    assert grade_file(str(path), out) == 2
    first, second = map(json.loads, out.getvalue().splitlines())
    assert list(first) == ["id", "correct", "format", "reward", "answer", "reason", "seconds"]
    assert (first["id"], first["correct"], first["format"], first["reward"], first["answer"]) == (
        "a",
        True,
        True,
        1.0,
        "$18",
    )
    assert (second["id"], second["correct"], second["reason"]) == (3, False, "different")


@pytest.mark.parametrize(
    "line, problem",
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"task": "gsm8k", "gold": "1"}', "'completion' is missing"),
        ('{"task": "gsm8k", "gold": 1, "completion": ""}', "'gold' is missing or no text"),
        ('{"task": "aime", "gold": "1", "completion": ""}', "unknown task 'aime'"),
        ('{"task": "gsm8k", "gold": "many", "completion": ""}', "is no number"),
        ('{"task": "math500", "gold": "", "completion": ""}', "gold is empty"),
    ],
)
def test_grade_file_names_the_invalid_line(tmp_path, line, problem):
    path = tmp_path / "in.jsonl"
    path.write_text(lines({"task": "gsm8k", "gold": "1", "completion": ""}, line))
    with pytest.raises(UserError, match=f"line 2: .*{problem}"):
        grade_file(str(path), io.StringIO())


def test_grade_file_without_a_file(tmp_path):
    with pytest.raises(UserError, match="can't be read"):
        grade_file(str(tmp_path / "none.jsonl"), io.StringIO())
