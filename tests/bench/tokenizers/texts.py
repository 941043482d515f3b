"""Texts that are hard on tokenizers, drawn by a seed."""
import random

SENTENCES = [
    "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience.",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren, und sollen einander im Geiste der Brüderlichkeit begegnen.",
    "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison, n'est-ce pas ?",
    "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.",
    "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "def main(values):\n    for i, value in enumerate(values):\n\t\tprint(f\"{i}: {value}\")  # 3.14159\r\n    return 0\n\n",
    "for (int i = 0; i < 100; ++i) { sum += x[i] * 2.5e-3; }  // it's what they'd've done, I'M sure we'll see\n",
    "😀 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ❤️ a\u0301e\u0308 ½ ² Ⅷ ٣٤ ४५",
]

SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\u00a0", "\u0085", "\u1680", "\u2003", "\u2028",
          "\u2029", "\u202f", "\u205f", "\u3000", "\v", "\f", "        ", "\u200b", "\ufeff", "\u180e"]
ENDINGS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'lL", "'D", "'\u017f", "'\u017fe", "'r",
           "'v", "'l", "'x", "'", "''s", "\u2019s", "'\u212a", "'re've", "'sx", "'LLx"]
MARKS = ["\u0301", "\u0308", "\u0327", "\u0323", "\u0307", "\u0345", "\u0338", "\u05b0", "\u05bc", "\u0651", "\u064b", "\u093c",
         "\u09be", "\u0bbe", "\u0dca", "\u3099", "\u309a", "\u20d2", "\u0f71", "\u0f72", "\u0f74", "\u302a", "\u1dfa", "\u0898",
         "\u1e130", "\U0001d165", "\U0001d16e", "\U000110ba", "\U0001e8d0"]
BASES = ["a", "e", "o", "u", "A", "\u00c5", "\u1eb9", "\u212b", "\u03b1", "\u1f00", "\u05d0", "\u0915", "\u09c7", "\u0bc6", "\u0dd9",
         "\u304b", "\uac00", "\u1100\u1161", "\u1100\u1161\u11a8", "\u1112", "\u1175", "\u11c2", "\u0f40", "\u226a", "\ufb1d", "\u0958",
         "\U0001d157", "\U0002f800", "\uf900", "\u0340", "\u0344", "\u0958", "\u2adc", "\U00011099"]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "❤️", "☺", "\u200d", "\ufe0f", "🧑🏿‍🚀"]
NUMBERS = ["1", "12", "123", "1234", "1234567", "3.14", "1,000", "½", "²³", "Ⅷ", "٣٤", "४५६७", "①", "〇", "\U0001d7d8", "𒐀"]
OTHERS = ["!", "?!", "...", "--", "«", "»", "“", "。", "、", "€", "$", "+=", "_", "__", "/", "\\", "<", ">", "|", "(", "))", "#", "@",
          "▁", "▁▁", "<0x41>", "<0x0A>", "Ġ", "Ċ", "ÿ", "\ufffd", "\x00", "\x01", "\x1b", "\x7f", "\u00ad", "\u0600", "\U000e0001",
          "<s>", "</s>", "<unk>"]


def character(choose):
    while True:
        code = choose.choice([choose.randrange(0x80), choose.randrange(0x800), choose.randrange(0x10000),
                              choose.randrange(0x110000), choose.randrange(0x1f000, 0x20000)])
        if not 0xd800 <= code <= 0xdfff:
            return chr(code)


def text(choose, added):
    """One of up to some hundred characters."""
    words = [word for sentence in SENTENCES for word in sentence.split(" ")]
    parts = []
    for _ in range(choose.choice([0, 1, 2, 3, 5, 8, 13, 21, 34])):
        kind = choose.randrange(12)
        if kind <= 2:
            parts.append(choose.choice(words) + choose.choice(["", " ", " "]))
        elif kind == 3:
            parts.append("".join(choose.choice(SPACES) for _ in range(choose.randrange(1, 5))))
        elif kind == 4:
            parts.append(choose.choice(words) + choose.choice(ENDINGS) + choose.choice(["", " "]))
        elif kind == 5:
            parts.append(choose.choice(BASES) + "".join(choose.choice(MARKS) for _ in range(choose.randrange(4))))
        elif kind == 6:
            parts.append(choose.choice(EMOJI))
        elif kind == 7:
            parts.append(choose.choice(NUMBERS))
        elif kind == 8:
            parts.append(choose.choice(OTHERS) * choose.choice([1, 1, 1, 2, 3]))
        elif kind == 9:
            parts.append("".join(character(choose) for _ in range(choose.randrange(1, 6))))
        elif kind == 10:
            parts.append(choose.choice(["", " "]) + choose.choice(choose.choice(SENTENCES).split(" ")))
        elif added:
            parts.append(choose.choice(["", " ", "  ", "\n"]) + choose.choice(added) + choose.choice(["", " ", "\t "]))
    return "".join(parts)


def texts(seed, count, added):
    choose = random.Random(seed)
    return [text(choose, added) for _ in range(count)]
