// The words of each of two texts that are not in the other, in order.

const MOST_WORDS = 2000; // of both texts together; longer ones are not compared

/** Return the positions [start, end] of the words in a text. */
const wordsOf = (text) => [...text.matchAll(/\S+/g)].map((word) => [word.index, word.index + word[0].length]);

/** Return [positions of the words only in the first, of those only in the second], by the longest common subsequence. */
function changedWords(first, second) {
  const [a, b] = [wordsOf(first), wordsOf(second)];
  if (a.length + b.length > MOST_WORDS) return [[], []];
  const same = (i, j) => first.slice(...a[i]) === second.slice(...b[j]);
  const longest = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1)); // lengths for a from i on and b from j on
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      longest[i][j] = same(i, j) ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
    }
  }
  const [gone, fresh] = [[], []];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && same(i, j)) { i++; j++; }
    else if (j >= b.length || (i < a.length && longest[i + 1][j] >= longest[i][j + 1])) gone.push(a[i++]);
    else fresh.push(b[j++]);
  }
  return [gone, fresh];
}

/** Return the text of a turn's tokens, without its end token. */
const tokensText = (turn) => (turn.finished ? turn.pieces.slice(0, -1) : turn.pieces).join("");

/** Return, for each turn of two episodes, the positions of words that are not in the other episode's turn. */
function comparedTurns(before, after) {
  const pairs = after.turns.map((turn, i) => changedWords(before.turns[i] ? tokensText(before.turns[i]) : "", tokensText(turn)));
  return { gone: pairs.map(([gone]) => gone), fresh: pairs.map(([, fresh]) => fresh) };
}
