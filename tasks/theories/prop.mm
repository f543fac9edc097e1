$( A propositional calculus: implication, negation, three axioms (Lukasiewicz) and modus ponens. $)

$c ( ) -> ~ wff |- $.
$v p q r s $.
wp $f wff p $.
wq $f wff q $.
wr $f wff r $.
ws $f wff s $.

$( What is a formula: an implication, a negation. $)
wi $a wff ( p -> q ) $.
wn $a wff ~ p $.

$( The axioms: ax1 adds an assumption, ax2 distributes one, ax3 turns an implication around. $)
ax1 $a |- ( p -> ( q -> p ) ) $.
ax2 $a |- ( ( p -> ( q -> r ) ) -> ( ( p -> q ) -> ( p -> r ) ) ) $.
ax3 $a |- ( ( ~ p -> ~ q ) -> ( q -> p ) ) $.

$( Modus ponens. $)
${
  mp.1 $e |- p $.
  mp.2 $e |- ( p -> q ) $.
  mp $a |- q $.
$}

$( What holds follows from anything. $)
${
  a1i.1 $e |- p $.
  a1i $p |- ( q -> p ) $=
    wp wq wp wi a1i.1 wp wq ax1 mp $.
$}

$( ax2 as a rule. $)
${
  a2i.1 $e |- ( p -> ( q -> r ) ) $.
  a2i $p |- ( ( p -> q ) -> ( p -> r ) ) $=
    wp wq wr wi wi wp wq wi wp wr wi wi a2i.1 wp wq wr ax2 mp $.
$}

$( Modus ponens behind an assumption. $)
${
  mpd.1 $e |- ( p -> q ) $.
  mpd.2 $e |- ( p -> ( q -> r ) ) $.
  mpd $p |- ( p -> r ) $=
    wp wq wi wp wr wi mpd.1 wp wq wr mpd.2 a2i mp $.
$}

$( A chain of two implications. $)
${
  syl.1 $e |- ( p -> q ) $.
  syl.2 $e |- ( q -> r ) $.
  syl $p |- ( p -> r ) $=
    wp wq wr syl.1 wq wr wi wp syl.2 a1i mpd $.
$}

$( Everything implies itself. $)
id $p |- ( p -> p ) $=
  wp wp wp wi wp wp wp ax1 wp wp wp wi ax1 mpd $.

$( Two assumptions change places. $)
${
  com12.1 $e |- ( p -> ( q -> r ) ) $.
  com12 $p |- ( q -> ( p -> r ) ) $=
    wq wp wq wi wp wr wi wq wp ax1 wp wq wr com12.1 a2i syl $.
$}

$( An assumption is needed once. $)
${
  once.1 $e |- ( p -> ( p -> q ) ) $.
  once $p |- ( p -> q ) $=
    wp wp wq wp id once.1 mpd $.
$}

$( ax3 as a rule. $)
${
  con4i.1 $e |- ( ~ p -> ~ q ) $.
  con4i $p |- ( q -> p ) $=
    wp wn wq wn wi wq wp wi con4i.1 wp wq ax3 mp $.
$}

$( From a contradiction follows anything. $)
absurd $p |- ( ~ p -> ( p -> q ) ) $=
  wp wn wq wn wp wn wi wp wq wi wp wn wq wn ax1 wq wp ax3 syl $.

$( Double negation, away. $)
nnd $p |- ( ~ ~ p -> p ) $=
  wp wn wn wp wp wn wn wp wn wp wn wn wn wi wp wn wn wp wi wp wn wp wn wn wn absurd wp wp wn wn ax3
  syl once $.

$( Double negation, added. $)
nni $p |- ( p -> ~ ~ p ) $=
  wp wn wn wp wp wn nnd con4i $.
