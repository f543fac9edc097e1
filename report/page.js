document.documentElement.classList.add('js');
const form = document.querySelector('form'), tasks = [...document.querySelectorAll('.task')];
const filter = () => {
  const f = Object.fromEntries(new FormData(form)), words = f.words.toLowerCase();
  let n = 0;
  for (const t of tasks) {
    const d = t.dataset;
    const ok = (!f.teacher || d.teacher === f.teacher) && (!f.student || d.student.split(' ').includes(f.student))
      && (!f.kind || d.kind === f.kind) && (!f.solved || d.solved === f.solved)
      && (!words || t.textContent.toLowerCase().includes(words));
    t.hidden = !ok;
    n += ok;
  }
  document.querySelector('#count').textContent = n + ' of ' + tasks.length + ' shown';
};
if (form) {
  for (const name of ['teacher', 'student', 'kind', 'solved']) {
    const held = t => name === 'student' ? t.dataset.student.split(' ') : t.dataset[name];
    const values = [...new Set(tasks.flatMap(held))].filter(value => value);
    for (const value of values.sort()) form.elements[name].add(new Option(value));
  }
  form.addEventListener('input', filter);
  form.addEventListener('submit', e => e.preventDefault());
  filter();
}
