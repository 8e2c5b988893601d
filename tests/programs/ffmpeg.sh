# ffmpeg.sh: generated video and sound through filters, encoders and decoders with two threads; checksums of frames.
#
# Who may call it: run.py.
#
# program: reach=ffmpeg rounds=2 needs=ffmpeg:ffmpeg
# version: ffmpeg -version
#
# SPDX-License-Identifier: Apache-2.0
seconds=$SCALE
media() { ffmpeg -nostdin -hide_banner -loglevel error -threads 2 -filter_threads 2 "$@"; }
exact="-fflags +bitexact -flags:v +bitexact -flags:a +bitexact -map_metadata -1"
media -f lavfi -i "testsrc2=size=640x360:rate=25" -f lavfi -i "sine=frequency=440:beep_factor=4:sample_rate=48000" -t $seconds \
    -c:v mpeg4 -q:v 5 -threads 2 -c:a flac $exact one.mkv
sha256sum one.mkv
media -i one.mkv -c:v libx264 -preset veryfast -threads 2 -c:a aac $exact two.mp4
media -i two.mp4 -map 0:v -threads 2 $exact -f framemd5 - | sha256sum
media -f lavfi -i "mandelbrot=size=320x240:rate=10" -t $seconds -vf "hue=s=2,unsharp,split[a][b];[a]hflip[c];[b][c]hstack,scale=400:-2" \
    $exact -pix_fmt yuv420p -f framemd5 - | sha256sum
media -i one.mkv -map 0:a -af "aresample=22050,volume=0.5" $exact -f md5 -
