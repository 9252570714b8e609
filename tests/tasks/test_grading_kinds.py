r"""Kinds of answers that a grader is easily wrong about: siblings, right and wrong ones side by side."""

import random

import pytest
import sympy

from ftis.tasks.grading.algebra import readable
from ftis.tasks.grading.clean import Unreadable, clean, squeeze
from ftis.tasks.grading.expressions import read_expression
from ftis.tasks.grading.verdict import grade_many
from tests.tasks.test_grading import TAG, table, wrong_verdicts

# right or not | gold | answer
MATH = r"""
yes | 6 | 6 students
yes | 6 | 6 ways
yes | 6 | 6 dogs
yes | 6 | 6 men
yes | 6 | 6 different ways to arrange the letters
yes | 6 | 6 ordered pairs
yes | 6 | 6 solutions.
yes | 6 | There are 6 solutions.
yes | 6 | there are 6 such integers
yes | 6 | So there are 6 ways.
yes | 60 | 60 miles per hour
yes | 60 | 60 mph
yes | 60 | 60 m/s
yes | 60 | 60 km per hour
yes | 60\text{ mph} | 60 miles per hour
yes | 60\text{ km/h} | 60 km/h
no  | 60\text{ km/h} | 60 mph
no  | 60\text{ km/h} | 60 m/s
yes | \frac{3}{2} | \frac{3}{2} cups
yes | \frac{3}{2} | 1.5 hours
yes | \frac{3}{2} | 1 1/2 cups
yes | 6 | 6 cm long
yes | 6 | 6 square units
yes | 6 | 6 units
yes | 6 | 6 people
yes | 6 | 6 Democrats
yes | 6 | 6 non-negative integers
yes | 6 | 6 handshakes in total
yes | 1200 | 1,200 students
yes | -6 | -6 meters
yes | 6 | 6 \text{ students}
yes | 6 | $6$ students
yes | 6 | $6$ ways.
yes | 6 | We have 6 ways
yes | 6 | n = 6 ways
no  | 6 | 6 dozen
no  | 6 | 6 million people
yes | 6000000 | 6 million people
no  | 6 | 6 thousand
no  | 6 | 6 hundred students
yes | 600 | 6 hundred students
no  | 6 | 6 abcd
no  | 6 | 6 xyz
no  | 6 | 6 xy
no  | 6 | 6 ab
no  | 6 | 6 pi
no  | 6 | 6 sqrt
no  | 6 | 6 alpha
no  | 6 | 6 tenths
no  | 6 | 6 sixths
no  | 6 | 6 quarters
no  | 6 | 6 percent of them wrong
no  | 6 | 6 or more ways
no  | 6 | 6 squared
no  | 6 | 6 factorial
no  | 6 | 6 more
no  | 6 | 6 is wrong
no  | 6 | 6 base eight
no  | 6 | 6 mod seven
no  | 6 | 6 ways or 7 ways
no  | 6 | 5 ways
no  | 6 | 6 ways and 7 students
no  | 6 | not 6 ways
no  | 5 | $5$ million
no  | 5 | $5$ dozen
no  | 5 | $5$ hundred dollars
no  | 5 | twice $5$
no  | 5 | the square root of $5$
no  | 5 | 5 \text{ dozen}
no  | 5 | 5 \text{ million dollars}
no  | 3\text{ m} | 3 students
yes | 12 | 3(4)
yes | 12 | (3)(4)
yes | 12 | (3)4
no  | 7 | (3)4
yes | 12 | 3 \cdot (4)
yes | 12 | 3[4]
yes | 24 | 2(3)(4)
yes | 24 | 2 \cdot 3(4)
yes | 20 | 2\binom{5}{2}
no  | 12 | 2\binom{5}{2}
yes | \frac{3}{2} | 3\left(\frac{1}{2}\right)
no  | \frac{7}{2} | 3\left(\frac{1}{2}\right)
yes | \frac{7}{2} | 3\frac{1}{2}
no  | \frac{3}{2} | 3\frac{1}{2}
yes | \frac{3}{2} | (3)\frac{1}{2}
yes | \frac{15}{2} | 3\frac{5}{2}
yes | 6 | 2(3!)/2
yes | 12 | 2(3!)
yes | 6 | 2|3|
no  | 5 | 2|3|
yes | -12 | -3(4)
yes | -12 | 3(-4)
no  | -1 | 3(-4)
yes | 120 | \frac{6(5)(4)}{1}
yes | 10 | \frac{5(4)}{2(1)}
yes | 9 | 4(2)+1
yes | 6\pi | 2(3)\pi
yes | 6\sqrt{2} | 2(3\sqrt{2})
yes | 6\sqrt{2} | 2(3)\sqrt2
no  | 5\sqrt{2} | 2(3)\sqrt2
yes | 8 | 2^{2}(2)
yes | 6 | 2\lfloor 3.5 \rfloor
yes | \sqrt{19} | √19
yes | \sqrt{51} | \sqrt51
yes | \sqrt{51} | √ 51
yes | \sqrt{51} | √(51)
yes | \sqrt{51} | √{51}
no  | 5 | √51
yes | 3\sqrt{13} | 3√13
yes | 3\sqrt{13} | √117
yes | 2\sqrt{113} | 2√113
yes | 70\sqrt{2} | 70√2
yes | \frac{\sqrt{21}}{5} | √21/5
yes | 3 | ∛27
yes | 3 | \sqrt[3]{27}
yes | 3 | \sqrt[3]27
no  | 9 | \sqrt19
yes | 1+\sqrt{19}, 1-\sqrt{19} | 1±√19
yes | (-\sqrt{3}, \sqrt{3}) | (-√3, √3)
yes | \sqrt{x+1} | √(x+1)
no  | \sqrt{x+1} | √x+1
yes | \sqrt{x} | √x
no  | 0 | e^{-200}
no  | 0 | 10^{-60}
no  | \pi | \pi+10^{-50}
no  | \pi | \pi+10^{-500}
no  | 1 | 1+e^{-300}
no  | 1 | 1-\frac{1}{2^{5000}}
no  | \frac{1}{100!} | \frac{1}{101!}
no  | \frac{\pi}{2004!} | \frac{\pi}{2006!}
yes | \frac{1}{100!} | \frac{101}{101!}
yes | 0 | (1+\sqrt{2})^2-3-2\sqrt{2}
yes | \sqrt{2}+\sqrt{3} | \sqrt{5+2\sqrt{6}}
yes | 0 | \sin(\pi)
yes | 1 | \sin^2(1)+\cos^2(1)
no  | \frac{1}{2^{300}} | \frac{1}{2^{301}}
yes | \frac{1}{2^{300}} | 2^{-300}
no  | 10^{-50} | 2\cdot 10^{-50}
yes | \frac{20000}{\pi} | \frac{20{,}000}{\pi}
yes | \frac{20000}{\pi} | 20,000/\pi
yes | 20000\pi | 20,000\pi
yes | 20000\pi | 20,000 \pi
yes | 1000, 2000 | 1,000, 2,000
yes | (1000, 2000) | (1,000, 2,000)
no  | (100,200) | 100200
no  | 1000 | (1,000)
yes | \sqrt{1234} | \sqrt{1,234}
yes | 2^{1000} | 2^{1,000}
no  | \frac{20000}{\pi} | \frac{20,00}{\pi}
yes | 1234+x | 1,234+x
no  | 1,234,5 | 12345
yes | \sin x\cos y | \cos y\sin x
yes | \sin x\cos y | \cos y \cdot \sin x
no  | \sin x\cos y | \sin(x\cos y)
yes | 2\sin x | \sin x \cdot 2
no  | \sin 2x | \sin x \cdot 2
yes | \sin 2x | 2\sin x\cos x
yes | \sin 2x | \sin(2x)
yes | \sin^2 x | (\sin x)^2
yes | \sin^2 x | \sin(x)^2
no  | \sin^2 x | \sin(x^2)
yes | x\ln x | \ln x \cdot x
yes | \frac{\ln x}{x} | \ln x/x
yes | \frac{\ln x}{x} | \ln(x)/x
no  | 0 | \ln x/x
yes | \frac{\ln 2}{3} | \ln 2/3
yes | 3\ln 2 | \ln(2)3
yes | 3\ln 2 | \ln 8
no  | \ln 6 | 3\ln 2
yes | \ln 6 | \ln 2+\ln 3
yes | \frac{1}{2} | \sin\frac{\pi}{6}
yes | \frac{1}{2} | \sin(\pi/6)
no  | 0 | \sin \pi/6
no  | \ln 6 | \ln 2 \times 3
yes | 2 | \log_2 4
yes | 2 | \log_{2}(4)
yes | 3\log_2 3 | \log_2 27
yes | 3\log_2 3 | 3\log_2(3)
yes | \log_2 3 | \frac{\ln 3}{\ln 2}
yes | \log_2 3 | \log_{2}{3}
no  | \log_2 3 | \log_3 2
yes | \tan x | \sin x/\cos x
yes | \cot x | \cos x/\sin x
yes | 200 | 2^3 \cdot 5^2
yes | 200 | 2^3 5^2
yes | 72 | 2^{3}3^{2}
yes | 72 | 2^{3} 3^{2}
no  | 8 | 2^{2}3
yes | 12 | 2^{2}3
yes | 8388608 | 2^{23}
no  | 8388608 | 2^{2}3
yes | 12x^2 | x^{2}12
yes | x^2y^3 | x^{2}y^{3}
yes | x_1x_2 | x_{1}x_{2}
yes | (1,2),(3,4) | (1,2) or (3,4)
yes | (1,2),(3,4) | (3,4), (1,2)
yes | (1,2),(3,4) | (x,y) = (1,2) or (x,y)=(3,4)
no  | (1,2),(3,4) | (1,2) or (4,3)
no  | (1,2),(3,4) | (1,2)
yes | (1,2)\cup(3,4) | (1,2) \text{ or } (3,4)
yes | \{1\pm\sqrt{5},-2\} | x=1\pm\sqrt{5}, x=-2
yes | \{1\pm\sqrt{5},-2\} | x=1\pm\sqrt{5} \text{ or } x=-2
yes | \{1\pm\sqrt{5},-2\} | \{-2, 1 ± √5\}
no  | \{1\pm\sqrt{5},-2\} | x = -2, y = 1 \pm \sqrt{5}
yes | 1,-2 | x_1=1, x_2=-2
yes | 1,-2 | x = 1, -2
no  | 1,-2 | a=1, b=-2
no  | 1,-2 | x=1 and y=-2
no  | (1,-2) | (y,x)=(1,-2)
yes | xy | y x
yes | xy | x \cdot y
yes | xy | y*x
no  | xy | x+y
no  | xy | Xy
no  | xy | an xy
yes | ab | ba
no  | ab | AB
yes | \text{even} | even
yes | even | Even
yes | even | \text{even}
no  | even | odd
yes | \text{Tuesday} | tuesday
yes | \text{No} | no
no  | \text{No} | yes
yes | 293 | m+n=293
yes | 293 | m + n = 256 + 37 = 293
no  | 293 | m+n=294
no  | 293 | 2m=293
yes | 293 | a-b=293
no  | 293 | m+m=293
yes | 6 | x+y+z=6
yes | x+y=5 | x+y=5
no  | x+y=5 | x+y=6
yes | \sqrt[3]{2} | 2^(1/3)
yes | \frac{1}{8} | 2^{-3}
yes | \frac{1}{8} | 2^(-3)
yes | \frac{1}{x} | x^-1
yes | \frac{1}{x} | x⁻¹
yes | e^{-x} | e^-x
yes | .0000672 | 6.72*10^-5
yes | .0000672 | 6.72 \times 10^{-5}
yes | .0000672 | 6.72E-5
yes | .0000672 | 6.72×10⁻⁵
no  | .0000672 | 6.72e-4
no  | .0000672 | 6.72e5
yes | 100000 | 1e5
yes | 6720000 | 6.72e6
yes | 2e-3 | 2e-3
no  | 0.002 | 2e - 3
yes | 32 | 2**5
yes | 32 | 2 ** 5
yes | 32 | 2⁵
yes | 5 | **5**
yes | 5r^5 | 5r^{5}
yes | 5r^5 | 5*r^5
no  | 5r^5 | 5r^{4}
yes | x^{10} | x¹⁰
yes | x^{10} | x^10
yes | 204_5 | 204₅
yes | 204_5 | 204_{5}
yes | 204_5 | 204_{\text{five}}
yes | 204_5 | 204 \text{ base } 5
yes | 204_5 | 204 base 5
yes | 204_5 | 204 (base 5)
yes | 204_5 | (204)_5
yes | 204_5 | (204)_{5}
no  | 204_5 | 204 base 6
no  | 204_5 | (204)_6
no  | 204_5 | 204
no  | 204 | 204 base 5
yes | \frac{1}{2} | ½
yes | 137.5 | 137½
yes | 2\frac{3}{4} | 2¾
no  | 137 | 137½
no  | \frac{137}{2} | 137½
yes | e | \mathrm{e}
yes | e^2 | {\rm e}^2
yes | i | \mathrm{i}
yes | 1+2i | 1+2\text{i}
no  | 1+2i | 1-2\mathrm{i}
yes | \begin{pmatrix} 1 \\ 2 \end{pmatrix} | \left[\begin{matrix}1\\2\end{matrix}\right]
yes | \begin{pmatrix} 1 \\ 2 \end{pmatrix} | \frac{1}{2}\begin{pmatrix} 2 \\ 4 \end{pmatrix}
yes | \begin{pmatrix} 1 \\ 2 \end{pmatrix} | -\begin{pmatrix} -1 \\ -2 \end{pmatrix}
no  | \begin{pmatrix} 1 \\ 2 \end{pmatrix} | 2\begin{pmatrix} 1 \\ 2 \end{pmatrix}
no  | \begin{pmatrix} 1 \\ 2 \end{pmatrix} | \begin{pmatrix} 1 \\ 2 \end{pmatrix}\begin{pmatrix} 1 \\ 2 \end{pmatrix}
yes | \begin{pmatrix} \sqrt{2} \\ 2 \end{pmatrix} | \sqrt{2}\begin{bmatrix} 1 \\ \sqrt{2} \end{bmatrix}
yes | \frac{20000}{\pi} | \frac{20000}{\pi} ≈ 6366.2
yes | \frac{20000}{\pi} | \frac{20,000}{\pi} \approx 6,366.2
yes | \sqrt{51} | \sqrt{51} \approx 7.14
yes | \frac{1}{3} | \frac13 \approx 0.333
no  | \frac{1}{3} | \frac13 \approx 0.5
no  | 5 | x \approx 5
no  | 7.14 | \sqrt{51} \approx 7.14
yes | \sqrt{51} | x = \sqrt{51} \approx 7.14
yes | \emptyset | \{\}
yes | \emptyset | \{ \}
yes | \emptyset | \text{the empty set}
no  | \emptyset | \{\emptyset\}
no  | \emptyset | 0
no  | 0 | \emptyset
no  | \emptyset | \{0\}
yes | 30\% | 30\text{ percent}
yes | 30\% | 30\text{\%}
yes | 30\% | 30 percent
yes | \sqrt{1/n} | \sqrt{\frac{1}{n}}
yes | \frac{1}{\sqrt n} | \frac{\sqrt{n}}{n}
no  | x | \sqrt{x^2}
no  | \sqrt{x} | -\sqrt{x}
yes | (-\infty, 0] | \{x : x \le 0\}
yes | (-\infty, 0] | \{x \in \mathbb{R} \mid x \leq 0\}
yes | (-\infty, 0] | x \in (-\infty, 0]
yes | (-\infty, 0] | ]-\infty, 0]
no  | (-\infty, 0] | \{x \mid x < 0\}
no  | (-\infty, 0] | \{x \mid x \ge 0\}
yes | (2,\infty) | \{x|x>2\}
yes | (2,\infty) | ]2,\infty[
yes | (-\infty,2)\cup(2,\infty) | x \ne 2
yes | (-\infty,2)\cup(2,\infty) | \mathbb{R} \setminus \{2\}
yes | (-\infty,\infty) | \mathbb{R}
yes | (-2,7) | -2 < x < 7
yes | (-2,7) | 7 > x > -2
yes | (-2,7) | \{x \mid -2 < x < 7\}
yes | [-2,7] | -2 \le f(x) \le 7
yes | x \in [-2,7] | [-2, 7]
yes | 3 | 3!!
no  | 720 | 3!!
yes | 720 | (3!)!
yes | 48 | 6!!
no  | \frac{1}{2}x | 1/2x
yes | x(x+1) | x^2+x
yes | x^2 + x | x(x+1)
no  | 5 | $\approx 5$
no  | f'(x) | f(x)
no  | x' | x
yes | \frac{\sqrt{3}}{3} | \frac{\sqrt{3}}3
yes | \frac{\pi}{2} | \frac\pi2
yes | d(x+1) | dx+d
no  | 6 | 6 log
no  | 6 | 6 sin
no  | 6 | 6 ln
no  | 6 | 6 exp
no  | 6 | 6 root
no  | 6 | 6x
no  | 6 | 6 x
no  | 6 | 6 m
no  | 6 | 6 i
no  | 6 | 6 e
no  | 6 | 6 to the power of two
no  | 6 | 6 choose two
no  | 6 | 6 out of 10
no  | 6 | 6 per cent of seven
yes | 24 | 24 possible outcomes
yes | 24 | 24 sq ft
yes | 24 | 24 square feet
no  | 24\text{ cm}^2 | 24 cubic cm
yes | 24\text{ cm}^2 | 24 sq cm
yes | 9 | 9 inches
yes | \$18.90 | 18.90 dollars
yes | \$36 | 36 dollars
yes | \$36 | \$36 per person
yes | 5.4 \text{ cents} | 5.4 cents
yes | \frac{270}7\text{ degrees} | \frac{270}{7} degrees
yes | 4 | 4 edges
yes | 15 | 15 vertices
yes | 7 | The answer is 7 meters
yes | 7 | The answer is 7 ways.
yes | 7 | 7 distinct values of n
yes | 7 | a total of 7 ways
yes | 7 | x = 7 meters
yes | 2 | 2 complex roots
no  | 3 | 3 hours and 20 minutes
yes | 0.5 | 0.5 liters
yes | 12 | 12 ways to choose
yes | 288\pi | 288\pi cubic inches
yes | 288\pi | 288 \pi \text{ cubic inches}
yes | 12\pi | 12\pi units
yes | 12\pi | 12π square cm
yes | 12\pi | 12π feet
no  | 12 | 12π feet
yes | 3\sqrt{13} | 3\sqrt{13} units
yes | \frac{5}{6} | \left(\frac{1}{2}\right)\left(\frac{5}{3}\right)
yes | \frac{5}{6} | \frac{1}{2}\left(\frac{5}{3}\right)
yes | \frac{5}{6} | \frac12 \cdot \frac53
yes | \frac{5}{6} | \frac{1}{2}\frac{5}{3}
yes | 10 | \frac{5!}{3!2!}
yes | 10 | \frac{5!}{(3!)(2!)}
yes | 10 | \frac{5!}{3! \cdot 2!}
yes | 60 | 5 \times 4 \times 3
yes | 60 | 5(4)(3)
yes | 60 | 5 \cdot 4 \cdot 3
yes | 60 | 5*4*3
yes | 60 | 10\binom{4}{2}
no  | 16 | 10\binom{4}{2}
yes | 36 | \binom{4}{2}\binom{4}{2}
yes | 36 | \binom{4}{2}^2
yes | 36 | {4 \choose 2}^2
yes | 2\sqrt{3} | 2(\sqrt{3})
yes | 2\sqrt{3} | 2\cdot\sqrt{3}
yes | 2\sqrt{3} | \sqrt{3}\cdot 2
yes | 2\sqrt{3} | \sqrt{3} \times 2
yes | 2\sqrt{3} | \sqrt{12}
yes | 2\sqrt{3} | 2 \sqrt 3
yes | 2\sqrt{3} | 2√(3)
yes | \frac{\sqrt{3}}{2} | √3/2
yes | \frac{\sqrt{3}}{2} | (√3)/2
yes | \frac{\sqrt{3}}{2} | sqrt(3)/2
yes | \frac{\sqrt{3}}{2} | \sqrt3/2
no  | \sqrt{\frac{3}{2}} | √3/2
yes | \frac{1+\sqrt{5}}{2} | (1+√5)/2
yes | \frac{1+\sqrt{5}}{2} | (1+sqrt(5))/2
no  | \frac{1+\sqrt{5}}{2} | 1+√5/2
yes | 11\sqrt2 | 11√2
yes | 16\sqrt{3} | 16√3 cm
yes | \sqrt{66} | √66 units
no  | \sqrt{66} | √6 6
no  | 6 | √6 6
yes | x^2+2x+1 | x²+2x+1
yes | x^3+3x-6 | x³+3x−6
yes | x^3+3x-6 | x**3 + 3*x - 6
yes | x^5 - x^4 + x^3 - x^2 + x - 1 | x⁵-x⁴+x³-x²+x-1
yes | 8n^2 + 4n + 1 | 8n² + 4n + 1
yes | (a+5)(b+2) | (b+2)(a+5)
yes | (a+5)(b+2) | ab+2a+5b+10
no  | (a+5)(b+2) | ab+2a+5b+11
yes | \frac{1}{16} | 2^{-4}
yes | \frac{1}{16} | (1/2)^4
yes | \frac{1}{16} | \left(\frac12\right)^4
yes | \frac{1}{16} | 4^-2
no  | \frac{1}{16} | -2^4
no  | 16 | -2^4
yes | 16 | (-2)^4
yes | 2 | 4^(1/2)
yes | 2 | 4^{1/2}
no  | 2 | 4^1/2 + 1
yes | 2 | 4^1/2
no  | 2 | 4^{0.49}
yes | 8 | 4^{3/2}
yes | 8 | 4^(3/2)
yes | x^{3/2} | x^(3/2)
yes | x^{3/2} | x\sqrt{x}
no  | x^{3/2} | x^3/2
yes | \frac{x^3}{2} | x^3/2
yes | y = -2x | y=-2x
yes | y = -2x | -2x
yes | y = -2x | y + 2x = 0
no  | y = -2x | y = 2x
no  | y = -2x | x + y = 0
yes | 1,-2 | x=1,-2
yes | 1,-2 | x=1 or -2
yes | 1,-2 | 1 or -2
yes | -2,1 | x \in \{-2,1\}
yes | 3, 5, 7 | 3, 5 and 7
yes | 3, 5, 7 | \{3, 5, 7\}
no  | 3, 5, 7 | 3, 5
no  | (6,31,-1) | 6,31,-1
yes | (6,31,-1) | (a,b,c)=(6,31,-1)
no  | (6,31,-1) | (c,b,a)=(6,31,-1)
yes | (6,31,-1) | (6, 31, -1)
yes | 11,\! 111,\! 111,\! 100 | 11,111,111,100
yes | 11,\! 111,\! 111,\! 100 | 11111111100
yes | 58,500 | 58,500 people
yes | 10,\!080 | 10,080 ways
yes | 26000 | 26,000
yes | 26000 | $26,000
no  | 26000 | 26,00
yes | 1+274i | 1+274i
yes | 1+274i | 274\mathrm{i}+1
no  | 1+274i | 1-274i
yes | 6-5i | 6 - 5i
yes | 145^\circ | 145 degrees
yes | 145^\circ | 145°
no  | 145^\circ | 145 radians
yes | \text{(C)} | C
yes | \text{(C)} | (C)
no  | \text{(C)} | (c) 5
yes | \text{ellipse} | an ellipse
yes | \text{ellipse} | Ellipse
no  | \text{ellipse} | ellipses or circle
yes | \text{Navin} | Navin
yes | \text{east} | East
no  | \text{east} | north east
yes | (-\sqrt{3}, \sqrt{3}) | -\sqrt{3} < x < \sqrt{3}
yes | (-\sqrt{3}, \sqrt{3}) | ]-\sqrt{3}, \sqrt{3}[
yes | (0,9) \cup (9,36) | (0,9) or (9,36)
yes | (0,9) \cup (9,36) | 0<x<9 \text{ or } 9<x<36
no  | (0,9) \cup (9,36) | (0,36)
yes | (3,4] | 3 < x \le 4
yes | (3,4] | \{x : 3 < x \leq 4\}
yes | (3,4] | \left\{ x \in \mathbb{R} : 3 < x \leqslant 4 \right\}
no  | (3,4] | (4,3]
yes | [0,\infty) | x \geq 0
yes | [0,\infty) | \{t \mid t \ge 0\}
yes | [0,\infty) | 0 \le x
yes | [0,\infty) | 0 \le x < \infty
no  | [0,\infty) | \{x \mid y \ge 0\}
no  | \{1,2\} | \{x \mid 1 \le x \le 2\}
yes | 3\text{ m} | 3 metres
yes | \begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix} | \frac{1}{5}\begin{pmatrix} 1 \\ -18 \end{pmatrix}
yes | \begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix} | \begin{bmatrix} 0.2 \\ -3.6 \end{bmatrix}
no  | \begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix} | \frac{1}{5}\begin{pmatrix} 1 \\ 18 \end{pmatrix}
yes | \begin{pmatrix} 16/49 \\ 48/49 \\ 24/49 \end{pmatrix} | \frac{8}{49}\begin{pmatrix} 2 \\ 6 \\ 3 \end{pmatrix}
no  | \sin x | \sin
yes | \arctan x | \tan^{-1} x
no  | \cot x | \tan^{-1} x
yes | e^{2x} | \exp(2x)
yes | e^{2x} | \exp{2x}
yes | \cos^2 x | 1-\sin^2 x
yes | \cos^2 x | (1+\cos 2x)/2
yes | \frac{\ln 3}{2} | \frac{1}{2}\ln 3
yes | \frac{\ln 3}{2} | \ln\sqrt{3}
yes | \frac{\ln 3}{2} | \ln(3)/2
yes | \frac{\ln 3}{2} | 0.5\ln 3
yes | \log_2 3 | \log_2{3}
yes | \log_{10} 2 | \log 2
no  | \log_{10} 2 | \ln 2
no  | 2\ln x | \ln 2x
no  | \sin 2 | 2\sin 1
yes | 1-x | -(x-1)
no  | 1-x | x-1
yes | \frac{1}{1-x} | -\frac{1}{x-1}
yes | \frac{1}{1-x} | 1/(1-x)
no  | \frac{1}{1-x} | 1/1-x
yes | 3 | 3.0
yes | 3 | +3
yes | 3 | 3\,
no  | 3 | 3i
no  | 3 | 3'
no  | 3 | 3^\circ \text{or } 4
no  | 0 | \frac{0}{0}
no  | 1 | \frac{x}{x+0.0000000000000000000000000000000000001}
no  | x | x+10^{-60}
no  | 2 | \sqrt{4}+10^{-70}
no  | \frac{\pi}{4} | \frac{\pi}{4}+\frac{1}{10^{100}}
no  | e^\pi | e^\pi + e^{-400}
yes | |x| | \sqrt{x^2}
yes | 3 | |-3|
no  | -3 | |-3|
no  | 6 | 6 divided by itself
no  | 6 | 6 choose them
no  | 6 | 6 imaginary units
no  | 6 | 6 \approx 6.4
yes | 6 | 6 ways to choose
no  | 2 | 10_2
no  | 10 | 10 base 2
yes | 7 | We get 7.
no  | 7 | We get at least 7.
"""
GSM8K = r"""
yes | 18 | 18 eggs!
yes | 18 | Final answer — 18
yes | 18 | Answer: 18 eggs!
no  | 18 | 18!
yes | 18 | C$18
yes | 18 | US$18
yes | 18 | A$18
yes | 18 | CAD 18
yes | 18 | ₱18
yes | 18 | R$ 18
yes | 1234 | 1 234 eggs
yes | 1234567 | 1 234 567
no  | 123456 | 123 45 6
no  | 18200 | 18 20
yes | 1200000 | 1.2×10^6
yes | 1200000 | 1.2 x 10^6
yes | 1200000 | 1.2 \times 10^{6}
yes | 1200000 | 1.2 × 10⁶
yes | 1200000 | 1.2 \cdot 10^6
no  | 12 | 1.2 \times 10^6
yes | 0.5 | ½
yes | 5.5 | 5½
yes | 5.5 | 5 ½ hours
yes | 5.5 | 5\frac12
yes | 5.5 | 5 \frac{1}{2}
yes | 5.5 | 5 and a half
yes | 5.25 | 5 and a quarter
no  | 5 | 5 and a half
no  | 5 | 5½
yes | 500000 | 5 hundred thousand dollars
yes | 2000000000 | 2 thousand million
yes | 3000000000 | $3 B
yes | 3000000000 | $3B
yes | 3000000000 | 3 billion
yes | 3000000 | $3 M
yes | 3000000 | 3 mil
no  | 3 | $3M
no  | 3 | 3 bn
no  | 3 | 3 B
no  | 3 | $3 b
no  | 3 | 3 T
no  | 3 | 3 K
no  | 5 | 5 Million
yes | 5000000 | 5 Million
no  | 5 | 5 lakh
no  | 5 | 5 THOUSAND
no  | 9 | sqrt 9
no  | 9 | abs(9)
no  | 9 | f(9)
no  | 9 | double 9
no  | 9 | half of 9
no  | 9 | the square root of 9
no  | 9 | the square of 9
no  | 9 | a third of 9
no  | 9 | 9 doubled
no  | 9 | 9 plus one
no  | 9 | 9 times itself
no  | 9 | 9%of 100
no  | 9 | log(9)
no  | 9 | 10% of 9
yes | 18 | 18 (eighteen)
yes | 18 | eighteen (18)
yes | 18 | There are eighteen (18) eggs
yes | 125 | one hundred and twenty-five (125)
no  | 18 | 18 (twenty)
no  | 18 | twenty (18)
no  | 18 | 18 (or 19)
yes | 18 | 18 (eggs)
yes | 18 | She has 18 eggs left!
yes | 18 | 18 — the number of eggs
no  | 18 | 20 — 18
no  | 18 | 18 — 2
yes | 18 | Answer -- 18
no  | 18 | 18 or 20!
no  | 12 | 1 2
"""


@pytest.mark.parametrize("task, text", [("math500", MATH), ("gsm8k", GSM8K)])
def test_siblings(task, text):
    rows = table(text)
    assert wrong_verdicts([(TAG % a, g, task) for _, g, a in rows], [r for r, _, _ in rows]) == []


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "1/2x",
            r"2\frac{1}{3}x",
            r"\ln 2\sqrt{3}",
            r"\sin x(x+1)",
            r"\sin \pi/6",
            "2^{3}!",
            "2^3^2",
            "f(2)",
        ),
        *(
            "3!!!",
            "x'",
            "2+",
            "3 4",
            "1.2.3",
            "(1",
            "|x",
            r"\sin",
            r"\frac{1}",
            "x_",
            "5,6",
            r"\foo",
            "2^",
            "^2",
            "",
        ),
    ],
)
def test_what_has_two_readings_or_none_is_refused(answer):
    with pytest.raises(Unreadable):
        read_expression(answer)
    assert not any(
        v.answer for v in grade_many([(TAG % answer, g, "math500") for g in ("7", "x", r"\sqrt{2}")])
    )


def test_the_reader_reads_what_sympy_prints():
    """120 random expressions, printed by sympy as LaTeX, have the value that they had."""
    rng, (x, y, n) = random.Random(3), sympy.symbols("x y n")
    at = {x: sympy.Rational(7, 3), y: sympy.Rational(11, 5), n: sympy.Rational(13, 7)}

    def made(depth):
        kind = rng.random()
        if depth == 0 or kind < 0.15:
            return rng.choice(
                [x, y, n, sympy.pi, sympy.Integer(rng.randint(1, 12)), sympy.sqrt(rng.randint(2, 7))]
            )
        if kind < 0.4:
            return made(depth - 1) + rng.choice([1, -1]) * made(depth - 1)
        if kind < 0.7:
            return made(depth - 1) * made(depth - 1)
        if kind < 0.8:
            return made(depth - 1) / made(depth - 1)
        if kind < 0.9:
            return made(depth - 1) ** rng.choice([2, 3, -1, sympy.Rational(1, 2)])
        return rng.choice([sympy.sin, sympy.cos, sympy.tan, sympy.exp])(made(depth - 1))

    compared = 0
    for expression in [made(4) for _ in range(120)]:
        text = squeeze(clean(sympy.latex(expression)))
        if expression.has(sympy.zoo, sympy.nan):
            continue
        assert readable(text), text
        value, read = (sympy.N(e.subs(at), 20) for e in (expression, read_expression(text)))
        if value.is_finite:
            compared += 1
            assert abs(value - read) <= 1e-12 * (1 + abs(value)), text
    assert compared > 100
