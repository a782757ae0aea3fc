from typing import Any

from django.db import migrations, models


def end_combinations(apps: Any, schema_editor: Any) -> None:
    """The version before takes one about several things for one about the user alone, or about the whole network."""
    overrides = apps.get_model("django_ratelimit_lua", "RateLimitOverride")
    overrides.objects.using(schema_editor.connection.alias).filter(kind__startswith="all:").delete()


class Migration(migrations.Migration):

    dependencies = [
        ('django_ratelimit_lua', '0004_answers_of_blocks'),
    ]

    operations = [
        migrations.AddField(
            model_name='ratelimitoverride',
            name='value_digests',
            field=models.CharField(blank=True, db_default='', default='', editable=False, max_length=200, verbose_name='digests of the values'),
        ),
        migrations.AlterField(
            model_name='ratelimitoverride',
            name='kind',
            field=models.CharField(editable=False, max_length=250, verbose_name='kind'),
        ),
        migrations.RunPython(migrations.RunPython.noop, end_combinations),
    ]
