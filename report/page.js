document.documentElement.classList.add('js');
const tip = document.createElement('div');
tip.id = 'tip';
tip.hidden = true;
document.body.append(tip);
for (const t of document.querySelectorAll('svg title')) {
  t.parentNode.dataset.tip = t.textContent;
  t.remove();
}
const tell = e => {
  const at = e.target.closest && e.target.closest('[data-tip]');
  tip.hidden = !at;
  if (!at) return;
  tip.textContent = at.dataset.tip;
  tip.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 6)) + 'px';
  tip.style.top = Math.max(4, Math.min(e.clientY + 14, innerHeight - tip.offsetHeight - 6)) + 'px';
};
document.addEventListener('pointermove', tell);
document.addEventListener('pointerdown', tell);
document.addEventListener('scroll', () => { tip.hidden = true; }, true);
const form = document.querySelector('form'), tasks = [...document.querySelectorAll('.task')];
const rates = {none: r => r === 0, some: r => r > 0 && r < 1, all: r => r === 1};
const filter = () => {
  const f = Object.fromEntries(new FormData(form)), words = f.words.toLowerCase();
  let n = 0;
  for (const t of tasks) {
    const d = t.dataset, rate = d.rate === '' ? NaN : +d.rate;
    const ok = (f.from === '' || +d.step >= +f.from) && (f.to === '' || +d.step <= +f.to)
      && (!f.teacher || d.teacher === f.teacher)
      && (!f.student || d.students.split(' ').includes(f.student)) && (!f.kind || d.kind === f.kind)
      && (!f.reason || (f.reason === 'valid' ? d.reason === '' : d.reason === f.reason))
      && (!f.solved || rates[f.solved](rate)) && (!words || t.textContent.toLowerCase().includes(words));
    t.hidden = !ok;
    n += ok;
  }
  document.querySelector('#count').textContent = n + ' of ' + tasks.length + ' shown';
};
if (form) {
  for (const name of ['teacher', 'student', 'kind', 'reason']) {
    const held = t => name === 'student' ? t.dataset.students.split(' ') : t.dataset[name];
    const values = [...new Set(tasks.flatMap(held))].filter(value => value);
    for (const value of values.sort()) form.elements[name].add(new Option(value));
  }
  form.addEventListener('input', filter);
  form.addEventListener('submit', e => e.preventDefault());
  filter();
}
