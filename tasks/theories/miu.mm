$( The MIU system of Douglas Hofstadter's "Goedel, Escher, Bach": strings of M, I and U, one axiom and four rules.
   Can MU be had? $)

$c M I U string |- $.
$v x y $.
sx $f string x $.
sy $f string y $.

$( What is a string: nothing, and a string with one more letter. $)
se $a string $.
sM $a string x M $.
sI $a string x I $.
sU $a string x U $.

$( The axiom. $)
mi $a |- M I $.

$( Behind an I at the end, a U may be added. $)
${
  addu.1 $e |- x I $.
  addu $a |- x I U $.
$}

$( What stands behind M may be doubled. $)
${
  double.1 $e |- M x $.
  double $a |- M x x $.
$}

$( Three I become a U. $)
${
  iii.1 $e |- x I I I y $.
  iii $a |- x U y $.
$}

$( Two U vanish. $)
${
  uu.1 $e |- x U U y $.
  uu $a |- x y $.
$}

$( The axiom, doubled. $)
mii $p |- M I I $=
  se sI mi double $.

$( Doubled again, and a U in the place of the last three I. $)
miu $p |- M I U $=
  se sM sI se se sI sI se sI mi double double iii $.
